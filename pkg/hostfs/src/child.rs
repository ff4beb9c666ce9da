//! Waiting for a child process until a deadline.

use std::{
    io,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Waits until the child has ended, and returns its status; `None`: the deadline passed first.
///
/// # Errors
/// The kernel refuses to report the status.
pub fn wait_for_child(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let Ok(handle) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return wait_by_asking(child, deadline);
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return child.try_wait(),
            Ok(_) => return child.wait().map(Some),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Polls every millisecond until the deadline, for kernels before 5.3, which have no pidfd, and sandboxes that refuse it.
fn wait_by_asking(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// With a pidfd, and without.
    #[test]
    fn a_child_is_waited_for_until_it_ends_or_the_deadline_comes() {
        for wait in [wait_for_child, wait_by_asking] {
            let mut child = Command::new("false").spawn().unwrap();
            let ended = wait(&mut child, Instant::now() + Duration::from_secs(60)).unwrap();
            assert_eq!(ended.and_then(|status| status.code()), Some(1));
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let began = Instant::now();
            let ended = wait(&mut child, began + Duration::from_millis(20)).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(ended, None);
            assert!((20..30_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        }
    }
}

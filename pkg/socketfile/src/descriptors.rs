//! File descriptors passed with a message (`SCM_RIGHTS`): at most one with each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends bytes, with this file descriptor, if any, attached to the first of them. Returns how many bytes were sent: on a stream
/// possibly not all. Never raises `SIGPIPE`; blocks unless `flags` prevent it.
///
/// # Errors
/// The kernel's error.
pub fn send_with_descriptor(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &descriptor
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)))
    {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)
}

/// File descriptor received with bytes.
#[derive(Debug)]
pub enum Accompanying {
    /// No descriptor was attached.
    Nothing,
    /// The last descriptor for which there was room. It is closed on exec.
    Descriptor(OwnedFd),
    /// A descriptor was attached, but the kernel did not deliver it: this process has no descriptors left, or a security module
    /// forbids it.
    Undeliverable,
}

/// Receives bytes, and the file descriptor attached to them. Of several, the kernel, or this function, closes the others.
///
/// # Errors
/// The kernel's error.
pub fn receive_with_descriptor(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Accompanying), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.last(),
        _ => None,
    });
    let accompanying = match rights.last() {
        Some(descriptor) => Accompanying::Descriptor(descriptor),
        None if received.flags.contains(ReturnFlags::CTRUNC) => Accompanying::Undeliverable,
        None => Accompanying::Nothing,
    };
    Ok((received.bytes, accompanying))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn descriptor_inode(accompanying: Accompanying) -> Option<u64> {
        let Accompanying::Descriptor(descriptor) = accompanying else { return None };
        Some(File::from(descriptor).metadata().unwrap().ino())
    }

    #[test]
    fn a_descriptor_accompanies_the_first_bytes() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let file = File::open("/proc/self/status").unwrap();
        let sent = send_with_descriptor(&here, b"ab", Some(file.as_fd()), SendFlags::empty());
        assert_eq!(sent, Ok(2));
        here.write_all(b"c").unwrap();
        let mut byte = [0];
        let (length, received) = receive_with_descriptor(&there, &mut byte).unwrap();
        assert_eq!((length, byte), (1, *b"a"));
        assert_eq!(descriptor_inode(received), Some(file.metadata().unwrap().ino()));
        let (length, received) = receive_with_descriptor(&there, &mut byte).unwrap();
        assert!((length, byte) == (1, *b"b") && matches!(received, Accompanying::Nothing));
    }

    #[test]
    fn bytes_come_without_a_descriptor_too() {
        let (here, mut there) = UnixStream::pair().unwrap();
        assert_eq!(send_with_descriptor(&here, b"a", None, SendFlags::empty()), Ok(1));
        there.read_exact(&mut [0]).unwrap();
        drop(there);
        assert_eq!(send_with_descriptor(&here, b"a", None, SendFlags::empty()), Err(Errno::PIPE));
    }

    #[test]
    fn one_of_several_descriptors_is_kept() {
        let (here, there) = UnixStream::pair().unwrap();
        let files = [(); 9].map(|()| File::open("/proc/self/status").unwrap());
        let descriptors = files.each_ref().map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&here, &[IoSlice::new(b"a")], &mut control, SendFlags::empty()).unwrap();
        let (length, received) = receive_with_descriptor(&there, &mut [0; 8]).unwrap();
        assert!(length == 1 && matches!(received, Accompanying::Descriptor(_)));
    }
}

//! Progress bar, on terminals only.

use std::io::{self, IsTerminal as _, Write as _};

const WIDTH: usize = 30;

/// Progress bar, removed when dropped.
pub(crate) struct ProgressBar {
    done: usize,
    of: usize,
    is_shown: bool,
}

impl ProgressBar {
    pub(crate) fn new(of: usize) -> ProgressBar {
        let bar = ProgressBar { done: 0, of, is_shown: of > 1 && io::stderr().is_terminal() };
        bar.draw();
        bar
    }

    pub(crate) fn step(&mut self) {
        self.done += 1;
        self.draw();
    }

    fn draw(&self) {
        if self.is_shown {
            let _ = write!(io::stderr().lock(), "\r{}", bar_text(self.done, self.of));
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn bar_text(done: usize, of: usize) -> String {
    let full = (done * WIDTH).checked_div(of).unwrap_or(WIDTH).min(WIDTH);
    format!("[{}{}] {done} of {of} agents", "=".repeat(full), " ".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_as_full_as_the_work_is_done() {
        assert_eq!(bar_text(0, 4), format!("[{}] 0 of 4 agents", " ".repeat(30)));
        assert_eq!(bar_text(2, 4), format!("[{}{}] 2 of 4 agents", "=".repeat(15), " ".repeat(15)));
        assert_eq!(bar_text(0, 0), format!("[{}] 0 of 0 agents", "=".repeat(30)));
    }
}

//! A process that does not outlive its parent.

use std::process::Child;

/// A child process. It is killed on drop.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

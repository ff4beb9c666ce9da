//! See the library: `istio_iptables::program`.

use std::{env, io, process::ExitCode};

fn main() -> ExitCode {
    match istio_iptables::program::run(env::args_os().skip(1), &mut io::stdout()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a command line tool tells its user why it failed")]
            {
                eprintln!("istio-iptables: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

//! See the library: `istio_iptables::clean`.

use std::{env, io, process::ExitCode};

fn main() -> ExitCode {
    match istio_iptables::clean::run(env::args_os().skip(1), &mut io::stdout()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a command line tool tells its user why it failed")]
            {
                eprintln!("istio-clean-iptables: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

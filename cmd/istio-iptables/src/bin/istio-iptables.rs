//! See the library: `istio_iptables::program`.

use std::{env, process::ExitCode};

use istio_iptables::tool::IptablesTool;

fn main() -> ExitCode {
    IptablesTool::Redirect.main(env::args_os().skip(1))
}

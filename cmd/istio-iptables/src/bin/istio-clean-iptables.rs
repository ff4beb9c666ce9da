//! See the library: `istio_iptables::clean`.

use std::{env, process::ExitCode};

use istio_iptables::tool::IptablesTool;

fn main() -> ExitCode {
    IptablesTool::Clean.main(env::args_os().skip(1))
}

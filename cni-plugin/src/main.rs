//! See the library.

use std::{
    env,
    io::{self, Write},
    panic,
    process::{self, ExitCode},
};

use cni_types::{CniError, ErrorCode};
use dlmalloc::GlobalDlmalloc;
use istio_cni::answer_call;

/// musl's own allocator costs an ADD a quarter of a millisecond.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        // A panic is a bug; the runtime still receives an error object to display.
        let error = CniError::new(ErrorCode::Other, format!("istio-cni panicked, which is a bug: {info}"));
        drop(writeln!(io::stdout(), "{}", error.to_json()));
        process::exit(1);
    }));
    if let Some(error) = firewall::become_tool(env::args_os()) {
        drop(writeln!(io::stderr(), "{error}"));
        return ExitCode::FAILURE;
    }
    let answer = answer_call(|name| env::var_os(name), &mut io::stdin().lock());
    // An error means that stdout or stderr is closed, and cannot be reported.
    drop(io::stderr().write_all(answer.stderr.as_bytes()));
    let mut stdout = io::stdout();
    // Flushed, because the end of the process would hide the error.
    match stdout.write_all(answer.stdout.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) if answer.success => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

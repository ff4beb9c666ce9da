//! `millrace`, also `kubectl millrace`: state of the mesh nodes and pods of a whole cluster, from their agents.
//!
//! Every command reads the API and queries each node's agent through the API server; none changes anything, except that `check
//! --pre -f` starts pods that check nodes, and deletes them. Findings are derived in `cluster-report`.

mod arguments;
mod commands;
mod discovery;
mod gather;
mod node_query;
mod output;
mod progress;

use std::process::ExitCode;

use arguments::Invocation;

fn main() -> ExitCode {
    let invocation = Invocation::parse(std::env::args_os());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(commands::run(&invocation));
            // Does not wait for requests that may still be open and are no longer needed.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(anyhow::Error::new(error).context("cannot start")),
    };
    outcome.unwrap_or_else(|error| {
        output::print_message(&model::describe_error(&*error));
        ExitCode::from(output::CANNOT)
    })
}

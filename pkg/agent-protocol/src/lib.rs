//! Messages on our Unix sockets in `/var/run/istio-cni/`, as values: log records that the plugin posts to `log.sock`, its requests
//! on `agent.sock`, those of Istio's own plugin on `pluginevent.sock`, and the file that both share.
//!
//! Pure: values to text and back. The crate must not open sockets or read the clock. Called by the plugin, which sends, and by the
//! agent, which receives.

mod agent;
mod event;
mod log;
mod record;
mod shared;
mod time;

pub use agent::{AgentAnswer, AgentRequest, CniVerb, MAX_ANSWER, MAX_REQUEST};
pub use event::{EVENT_PATH, EventError, PluginEvent};
pub use log::{LogLevel, LogLineError, LogRecord, parse_post_body, post_body};
pub use record::{
    FAILURE_PLACES, FORMER_FAILED, MAX_ANNOTATION, MAX_FAILURE, MAX_RECORD, MAX_SUCCESS, NetnsFile,
    PodRecord, RECORDS, REFUSED_CREDENTIAL, RecordError, STAGED, failure_place, is_failure_place,
};
pub use shared::{SharedConfig, SharedNode};
pub use time::{rfc3339, rfc3339_micros};

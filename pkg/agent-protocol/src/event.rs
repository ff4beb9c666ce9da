//! Events that Istio's own plugin (1.29 to 1.31) posts to `pluginevent.sock` at an ADD.

use std::net::IpAddr;

use serde::Deserialize;

/// Path of the request.
pub const EVENT_PATH: &str = "/cmdadd";

/// A starting pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginEvent {
    /// `Netns`: `CNI_NETNS`, a path on the host.
    pub netns: String,
    /// `PodName`.
    pub name: String,
    /// `PodNamespace`.
    pub namespace: String,
    /// Addresses of `IPs`, of all interfaces; IPv4-mapped ones are converted to IPv4.
    pub ips: Vec<IpAddr>,
}

/// Error of parsing an event.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// The text is not JSON of the expected form.
    #[error("cannot read the event: {0}")]
    Json(#[from] serde_json::Error),
    /// A member is missing or empty.
    #[error("cannot read the event: it has no {0}")]
    Missing(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawPluginEvent {
    netns: Option<String>,
    pod_name: Option<String>,
    pod_namespace: Option<String>,
    #[serde(rename = "IPs")]
    ips: Option<Vec<Option<EventIpConfig>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EventIpConfig {
    address: EventAddress,
}

#[derive(Deserialize)]
struct EventAddress {
    #[serde(rename = "IP")]
    ip: IpAddr,
}

impl PluginEvent {
    /// Parses the body of a request. Members not listed here are ignored.
    ///
    /// # Errors
    /// The body is not a JSON object, a member has the wrong type or is no address, or a name is missing.
    pub fn parse(body: &[u8]) -> Result<PluginEvent, EventError> {
        let RawPluginEvent { netns, pod_name, pod_namespace, ips } = serde_json::from_slice(body)?;
        let present = |name, text: Option<String>| {
            text.filter(|text| !text.is_empty()).ok_or(EventError::Missing(name))
        };
        let ips = ips.unwrap_or_default().into_iter().flatten();
        Ok(PluginEvent {
            netns: present("Netns", netns)?,
            name: present("PodName", pod_name)?,
            namespace: present("PodNamespace", pod_namespace)?,
            ips: ips.map(|config| config.address.ip.to_canonical()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"Netns":"/var/run/netns/cni-1","PodName":"web","PodNamespace":"shop","IPs":[
        {"Interface":2,"Address":{"IP":"10.244.1.5","Mask":"////AA=="},"Gateway":"10.244.1.1"},
        {"Interface":null,"Address":{"IP":"::ffff:10.244.1.6","Mask":"/////////////////////w=="},"Gateway":""},
        {"Address":{"IP":"fd00::5","Mask":"//////////8AAAAAAAAAAA=="},"Gateway":"fd00::1"}],"New":{}}"#;

    #[test]
    fn an_event_of_istios_plugin_is_understood() {
        let event = PluginEvent::parse(WHOLE.as_bytes()).unwrap();
        assert_eq!((event.namespace.as_str(), event.name.as_str()), ("shop", "web"));
        assert_eq!(event.netns, "/var/run/netns/cni-1");
        let ips: Vec<String> = event.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.244.1.5", "10.244.1.6", "fd00::5"]);
        for none in ["null", "[]", "[null]"] {
            let text = format!(r#"{{"Netns":"/n","PodName":"a","PodNamespace":"b","IPs":{none}}}"#);
            assert!(PluginEvent::parse(text.as_bytes()).unwrap().ips.is_empty(), "{none}");
        }
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for (text, why) in [
            ("", "EOF"),
            ("[1]", "invalid"),
            (r#"{"Netns":5}"#, "invalid type"),
            (r#"{"netns":"/n","PodName":"a","PodNamespace":"b"}"#, "no Netns"),
            (r#"{"Netns":"/n","PodName":"","PodNamespace":"b"}"#, "no PodName"),
            (r#"{"Netns":"/n","PodName":"a","PodNamespace":null}"#, "no PodNamespace"),
            (r#"{"Netns":"/n","PodName":"a","PodNamespace":"b","IPs":["10.0.0.1"]}"#, "invalid type"),
            (
                r#"{"Netns":"/n","PodName":"a","PodNamespace":"b","IPs":[{"Address":{"IP":"10"}}]}"#,
                "invalid IP",
            ),
        ] {
            let error = PluginEvent::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

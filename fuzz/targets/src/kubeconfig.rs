//! The kubeconfig that the plugin reads.

use std::path::Path;

use apiclient::Kubeconfig;

/// Any text is a kubeconfig or an error of one readable sentence; the same each time; and `Debug` shows no parsed token.
///
/// # Panics
/// If one of these does not hold.
pub fn kubeconfig(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let directory = Path::new("/etc/cni/net.d");
    let read = |path: &Path| {
        assert!(path.is_absolute(), "{}", path.display());
        Ok(SECRET.into())
    };
    let parsed = Kubeconfig::parse(&text, directory, &read);
    assert_eq!(parsed, Kubeconfig::parse(&text, directory, &read));
    match parsed {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(config) => {
            assert!(config.server.port > 0);
            let shown = format!("{:?}", (&config.authorization, &config.certificate));
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}

/// Part of the secrets in the seeds, so that a leak is recognised whatever else was changed.
const SECRET: &str = "s3cr3t";

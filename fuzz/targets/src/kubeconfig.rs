//! The kubeconfig that the plugin reads.

use std::path::Path;

use apiclient::Kubeconfig;

/// Any text is a kubeconfig or an error of one readable sentence; the same each time; and no token that was
/// understood is shown by `Debug`.
///
/// # Panics
/// When one of these does not hold.
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

/// The seeds' secrets contain this word, so a leak is recognised whatever else was changed.
const SECRET: &str = "s3cr3t";

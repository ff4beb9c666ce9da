/// Reason why a namespace could not be redirected, compared or cleaned; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace could not be opened or entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// Addresses, routes or policy rules of the namespace could not be read or changed.
    #[error(transparent)]
    Network(#[from] hostnet::Error),
    /// Firewall tables of the namespace could not be read or changed.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// The desired rules of the namespace were recorded by another version.
    #[error(transparent)]
    Recorded(#[from] rules::UnknownRecordedRule),
    /// The namespace has no usable address yet.
    #[error(transparent)]
    NoAddress(#[from] crate::NoAddress),
}

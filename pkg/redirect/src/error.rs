/// Why a namespace could not be redirected, compared or cleaned; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace itself.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// The addresses, routes or policy rules of the namespace.
    #[error(transparent)]
    Network(#[from] hostnet::Error),
    /// The firewall tables of the namespace.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// The rules that the namespace has to have were recorded by another version.
    #[error(transparent)]
    Recorded(#[from] rules::UnknownRecordedRule),
    /// The namespace has no usable address yet.
    #[error(transparent)]
    NoAddress(#[from] crate::NoAddress),
}

/// Why a namespace could not be redirected, compared or cleaned; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace itself.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// Its addresses, routes or policy rules.
    #[error(transparent)]
    Network(#[from] hostnet::Error),
    /// Its firewall tables.
    #[error(transparent)]
    Firewall(#[from] netfilter::Error),
    /// It has no address yet.
    #[error(transparent)]
    NoAddress(#[from] crate::NoAddress),
}

//! TLS provider of plugin and agent: ring, or the FIPS module of AWS-LC in a build with the feature `fips`. Selected here at build
//! time, and never process-wide.

use rustls::crypto::CryptoProvider;

use crate::FailureReason;

/// Returns the name of the TLS provider, for people: `ring`, or AWS-LC with the version of its library and the mode.
pub fn describe_tls_provider() -> String {
    name_provider(choose_provider().is_ok_and(|provider| provider.fips()))
}

/// Checks that TLS can be used, so that a program can refuse to start.
///
/// # Errors
/// The build requires a FIPS module, and the provider does not report one; or it has no provider.
pub fn confirm_tls_provider() -> Result<(), FailureReason> {
    choose_provider().map(drop)
}

#[cfg(feature = "fips")]
pub(crate) fn choose_provider() -> Result<CryptoProvider, FailureReason> {
    require_fips(rustls::crypto::default_fips_provider())
}

#[cfg(feature = "fips")]
fn name_provider(is_fips: bool) -> String {
    let mode = if is_fips { "in FIPS mode" } else { "not in FIPS mode" };
    format!("AWS-LC {}, {mode}", aws_lc_rs::awslc_version())
}

#[cfg(all(feature = "ring", not(feature = "fips")))]
pub(crate) fn choose_provider() -> Result<CryptoProvider, FailureReason> {
    Ok(rustls::crypto::ring::default_provider())
}

#[cfg(all(feature = "ring", not(feature = "fips")))]
fn name_provider(_is_fips: bool) -> String {
    "ring".to_owned()
}

/// Returns the provider; `Err` in a crate checked alone, without the program that selects the provider.
#[cfg(not(any(feature = "ring", feature = "fips")))]
pub(crate) fn choose_provider() -> Result<CryptoProvider, FailureReason> {
    Err(FailureReason::Provider("this program was built without a TLS provider".to_owned()))
}

#[cfg(not(any(feature = "ring", feature = "fips")))]
fn name_provider(_is_fips: bool) -> String {
    "none".to_owned()
}

/// Rejects a provider that is not approved: a FIPS build never falls back to other cryptography.
#[cfg(any(feature = "fips", test))]
fn require_fips(provider: CryptoProvider) -> Result<CryptoProvider, FailureReason> {
    if provider.fips() {
        return Ok(provider);
    }
    Err(FailureReason::Provider(
        "this is a FIPS build, and its TLS provider does not report FIPS mode".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fips_build_refuses_a_provider_without_fips_mode() {
        let refused = require_fips(rustls::crypto::ring::default_provider()).map(drop);
        assert!(matches!(refused, Err(FailureReason::Provider(_))), "{refused:?}");
    }

    #[test]
    fn the_provider_is_that_of_the_build() {
        let is_fips = cfg!(feature = "fips");
        assert_eq!(choose_provider().unwrap().fips(), is_fips);
        assert_eq!(crate::tls_config(None).unwrap().fips(), is_fips);
        assert_eq!(confirm_tls_provider(), Ok(()));
        let name = describe_tls_provider();
        assert_eq!(name == "ring", !is_fips, "{name}");
        assert_eq!(name.ends_with(", in FIPS mode"), is_fips, "{name}");
    }
}

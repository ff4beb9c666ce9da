//! An ambient node: two pods of the mesh, one outside it, one with a sidecar, and stubs of ztunnel.

mod fixture;
mod scenes;
mod source;

use kit::ApiServer;

use crate::show::Show;
use fixture::Fixture;
use source::Source;

/// Runs all scenes; with an API server, pods are read from it, else from a directory of manifests.
pub(crate) fn play(show: &mut Show, api: Option<&'static ApiServer>, stay: impl FnOnce(&Fixture)) {
    let source = api.map_or_else(Source::directory, Source::Api);
    let mut fixture = Fixture::start(source, show);
    let mut actors = scenes::cast(&mut fixture, show);
    scenes::ways(&fixture, &actors, show);
    scenes::rollout(&mut fixture, &mut actors, show);
    scenes::restart(&mut fixture, &actors, show);
    scenes::without_ztunnel(&mut fixture, &mut actors, show);
    stay(&fixture);
    scenes::leave(&fixture, &actors, show);
    scenes::end(fixture, actors, show);
}

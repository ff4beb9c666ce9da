//! An ambient node: two pods of the mesh, one outside of it, one with a sidecar, and stubs of ztunnel.

mod lab;
mod scenes;
mod source;

use kit::ApiServer;

use crate::show::Show;
use lab::Lab;
use source::Source;

/// All of it; with an API server, pods are read from there, else from a directory of manifests.
pub(crate) fn play(show: &mut Show, api: Option<&'static ApiServer>, stay: impl FnOnce(&Lab)) {
    let source = api.map_or_else(Source::directory, Source::Api);
    let mut lab = Lab::start(source, show);
    let mut actors = scenes::cast(&mut lab, show);
    scenes::ways(&lab, &actors, show);
    scenes::rollout(&mut lab, &mut actors, show);
    scenes::restart(&mut lab, &actors, show);
    scenes::without_ztunnel(&mut lab, &mut actors, show);
    stay(&lab);
    scenes::leave(&lab, &actors, show);
    scenes::end(lab, actors, show);
}

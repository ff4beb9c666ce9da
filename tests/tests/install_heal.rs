//! What others damage is repaired within a second, nothing turns when nothing happens, and `/readyz` never says
//! that all is well when it is not.

#[path = "install_heal/damage.rs"]
mod damage;
#[path = "install_heal/honest.rs"]
mod honest;
#[path = "install_heal/idle.rs"]
mod idle;
#[path = "install_heal/leaving.rs"]
mod leaving;
#[path = "install_heal/scene.rs"]
pub(crate) mod scene;
#[path = "install_heal/times.rs"]
mod times;

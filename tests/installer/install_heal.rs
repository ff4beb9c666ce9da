//! What others damage is repaired within a second, nothing turns when nothing happens, and `/readyz` never says
//! that all is well when it is not.

mod damage;
pub(crate) mod fixture;
mod honest;
mod idle;
mod leaving;
mod times;

//! Foreign damage is repaired within a second, an idle agent uses no CPU time, and `/readyz` never reports success while there is a
//! fault.

mod damage;
pub(crate) mod fixture;
mod honest;
mod idle;
mod leaving;
mod times;

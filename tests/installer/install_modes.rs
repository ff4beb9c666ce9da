//! The ways in which our entry gets to a runtime, what they leave behind, and what is written for the plugin.

mod choice;
mod credential;
mod leaving;
mod own;
mod standalone;
mod template;

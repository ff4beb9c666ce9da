//! The ways in which our entry gets to a runtime, what they leave behind, and what is written for the plugin.

#[path = "install_modes/choice.rs"]
mod choice;
#[path = "install_modes/credential.rs"]
mod credential;
#[path = "install_modes/leaving.rs"]
mod leaving;
#[path = "install_modes/own.rs"]
mod own;
#[path = "install_modes/standalone.rs"]
mod standalone;
#[path = "install_modes/template.rs"]
mod template;

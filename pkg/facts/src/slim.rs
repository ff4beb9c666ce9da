//! Objects of the API server, trimmed as soon as they are read, so that a list of them is small.

use std::mem;

use enrolment::facts;
use kubeio::Versioned;
use model::{Namespace, ObjectMeta, Pod};
use serde::{Deserialize, Deserializer};

use crate::belief::ObjectVersion;

/// An object without what nothing is decided on, and its version.
pub(crate) struct TrimmedObject<T> {
    pub(crate) object: T,
    /// For the watch, which takes it.
    version: String,
    number: Option<u64>,
}

impl<T> TrimmedObject<T> {
    fn new(mut object: T, version: String, trim: fn(&mut T)) -> Self {
        trim(&mut object);
        let number = version.parse().ok();
        TrimmedObject { object, version, number }
    }
}

/// An object with metadata.
pub(crate) trait HasMetadata {
    fn metadata(&self) -> &ObjectMeta;
}

impl HasMetadata for Pod {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl HasMetadata for Namespace {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl<T: HasMetadata> TrimmedObject<T> {
    pub(crate) fn version(&self) -> ObjectVersion {
        ObjectVersion { uid: self.object.metadata().uid.clone(), number: self.number }
    }
}

impl<T> Versioned for TrimmedObject<T> {
    fn take_version(&mut self) -> String {
        mem::take(&mut self.version)
    }
}

impl<'de> Deserialize<'de> for TrimmedObject<Pod> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Pod::deserialize(deserializer)?;
        let version = object.take_version();
        Ok(TrimmedObject::new(object, version, facts::trim_pod))
    }
}

impl<'de> Deserialize<'de> for TrimmedObject<Namespace> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Namespace::deserialize(deserializer)?;
        let version = object.take_version();
        Ok(TrimmedObject::new(object, version, facts::trim_namespace))
    }
}

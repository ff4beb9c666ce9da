//! API objects, trimmed as soon as they are parsed, so that a list of them is small.

use enrolment::facts;
use model::{Namespace, ObjectMeta, Pod};

use crate::belief::ObjectVersion;

/// An object without the parts that no decision depends on, and its version.
pub(crate) struct TrimmedObject<T> {
    pub(crate) object: T,
    number: Option<u64>,
}

impl<T: AsRef<ObjectMeta>> TrimmedObject<T> {
    fn new(mut object: T, trim: fn(&mut T)) -> Self {
        let number = object.as_ref().resource_version.parse().ok();
        trim(&mut object);
        TrimmedObject { object, number }
    }

    pub(crate) fn version(&self) -> ObjectVersion {
        ObjectVersion { uid: self.object.as_ref().uid.clone(), number: self.number }
    }
}

impl From<Pod> for TrimmedObject<Pod> {
    fn from(pod: Pod) -> Self {
        TrimmedObject::new(pod, facts::trim_pod)
    }
}

impl From<Namespace> for TrimmedObject<Namespace> {
    fn from(namespace: Namespace) -> Self {
        TrimmedObject::new(namespace, facts::trim_namespace)
    }
}

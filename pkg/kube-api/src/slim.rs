//! Objects reduced to the reader's type, and the version from which the watch resumes.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer};

/// One object, deserialised as an `O` and reduced to a `T`. Clone and Debug omit the object: kube requires both, and uses neither.
pub(crate) struct SlimObject<O, T> {
    /// Metadata with nothing but the version.
    meta: ObjectMeta,
    pub(crate) object: Option<T>,
    read_as: PhantomData<fn() -> O>,
}

impl<O, T> Clone for SlimObject<O, T> {
    fn clone(&self) -> Self {
        Self { meta: self.meta.clone(), object: None, read_as: PhantomData }
    }
}

impl<O, T> fmt::Debug for SlimObject<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slim").field(&self.meta.resource_version).finish()
    }
}

impl<'de, O, T> Deserialize<'de> for SlimObject<O, T>
where
    O: AsRef<model::ObjectMeta> + Deserialize<'de>,
    T: From<O>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = O::deserialize(deserializer)?;
        let version = object.as_ref().resource_version.clone();
        let resource_version = Some(version).filter(|version| !version.is_empty());
        let meta = ObjectMeta { resource_version, ..ObjectMeta::default() };
        Ok(Self { meta, object: Some(T::from(object)), read_as: PhantomData })
    }
}

impl<O, T> Resource for SlimObject<O, T> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

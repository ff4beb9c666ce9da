//! An object of which nothing is kept but what its reader wants, and the version that the watch goes on from.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer};

/// An object that knows its version.
pub trait Versioned {
    /// Takes `metadata.resourceVersion` out, from which a watch goes on; empty if there is none.
    fn take_version(&mut self) -> String;
}

impl Versioned for model::Pod {
    fn take_version(&mut self) -> String {
        std::mem::take(&mut self.metadata.resource_version)
    }
}

impl Versioned for model::Namespace {
    fn take_version(&mut self) -> String {
        std::mem::take(&mut self.metadata.resource_version)
    }
}

/// One object. Neither clones nor prints have the object in them: kube asks for both, and uses neither.
pub(crate) struct SlimObject<T> {
    /// Nothing but the version.
    meta: ObjectMeta,
    object: Option<T>,
}

impl<T> SlimObject<T> {
    pub(crate) fn into_object(self) -> Option<T> {
        self.object
    }
}

impl<T> Clone for SlimObject<T> {
    fn clone(&self) -> Self {
        Self { meta: self.meta.clone(), object: None }
    }
}

impl<T> fmt::Debug for SlimObject<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slim").field(&self.meta.resource_version).finish()
    }
}

impl<'de, T: Versioned + Deserialize<'de>> Deserialize<'de> for SlimObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = T::deserialize(deserializer)?;
        let resource_version = Some(object.take_version()).filter(|version| !version.is_empty());
        let meta = ObjectMeta { resource_version, ..ObjectMeta::default() };
        Ok(Self { meta, object: Some(object) })
    }
}

impl<T> Resource for SlimObject<T> {
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

//! An object of which nothing is kept but what its reader wants, and the version that the watch goes on from.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// One object. Neither clones nor prints have the object in them: kube asks for both, and uses neither.
pub(crate) struct Slim<T> {
    /// Nothing but the version.
    meta: ObjectMeta,
    object: Option<T>,
}

impl<T> Slim<T> {
    pub(crate) fn into_object(self) -> Option<T> {
        self.object
    }
}

impl<T> Clone for Slim<T> {
    fn clone(&self) -> Self {
        Self { meta: self.meta.clone(), object: None }
    }
}

impl<T> fmt::Debug for Slim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slim").field(&self.meta.resource_version).finish()
    }
}

#[derive(Deserialize)]
struct Versioned {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: Option<String>,
}

/// The text is read twice, which costs less than a tree of all that is in it.
impl<'de, T: DeserializeOwned> Deserialize<'de> for Slim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let read = || {
            let Versioned { metadata } = serde_json::from_str(text.get())?;
            let object = serde_json::from_str(text.get())?;
            let meta = ObjectMeta { resource_version: metadata.resource_version, ..ObjectMeta::default() };
            Ok(Self { meta, object: Some(object) })
        };
        read().map_err(|cause: serde_json::Error| {
            serde::de::Error::custom(format!("an object cannot be read: {cause}"))
        })
    }
}

impl<T> Resource for Slim<T> {
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

//! A real API server accepts the objects.

use kit::ApiServer;
use serde_json::Value;

use super::helm::Helm;
use crate::install_manifests::documents::{create, renamed};

/// Groups of CRDs that the tests' API server does not have.
const FOREIGN: [&str; 2] = ["k8s.cni.cncf.io/v1", "monitoring.coreos.com/v1"];

const EVERYTHING: [&str; 11] = [
    "resourceQuotas.enabled=true",
    "psp_cluster_role=view",
    "global.imagePullSecrets={registry}",
    "millrace.nodeCondition=true",
    "millrace.taintController.enabled=true",
    "millrace.admissionPolicy.enabled=true",
    "millrace.networkPolicy.enabled=true",
    "millrace.podMonitor.enabled=true",
    "millrace.alerts.enabled=true",
    "millrace.dashboard.enabled=true",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].\
     key=metadata.name,affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].\
     matchFields[0].operator=In,affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
     nodeSelectorTerms[0].matchFields[0].values={node-1}",
];

#[test]
fn the_api_server_takes_every_object() {
    const OWN: &str = "chart-letter";
    let Some(helm) = Helm::find() else { return };
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace(OWN);
    let modes: [&[&str]; 10] = [
        &[],
        &EVERYTHING,
        &["profile=ambient"],
        &["profile=ambient", "millrace.ambientCapture=node", "global.networkPolicy.enabled=true"],
        &["profile=ambient", "ambient.shareHostNetworkNamespace=true", "useAppArmorAnnotation=false"],
        &["repair.repairPods=false", "repair.labelPods=true", "rollingMaxUnavailable=25%"],
        &["repair.enabled=false", "updateStrategy.type=OnDelete", "privileged=true"],
        &["platform=openshift", "profile=ambient", "revision=canary", "ownerName=someone"],
        &["platform=gke", "tolerations=null", "env.REPAIR_LABEL_SELECTORS=app"],
        &["compatibilityVersion=1.20", "cni.ambient.enabled=true"],
    ];
    for set in modes {
        let objects = helm.template(set).unwrap_or_else(|complaint| panic!("{set:?}: {complaint}"));
        // A pod of `helm test` needs an existing service account: see `test_pod`.
        let known = |one: &Value| {
            one["kind"] != "Pod" && FOREIGN.iter().all(|foreign| one["apiVersion"] != **foreign)
        };
        let known: Vec<Value> = objects.into_iter().filter(known).collect();
        assert!(known.len() >= 6, "{set:?}");
        renamed(known, OWN).iter().for_each(|one| create(api, one, "&dryRun=All"));
    }
}

//! `hack/demo --cluster`: the product from its chart, an application with sidecars and one in ambient mode, and an operator's
//! commands; on a terminal, then a shell on the cluster.

use std::io::{IsTerminal as _, stdin};

use serde_json::Value;

use crate::agent::Agent;
use crate::control::Places;
use crate::fixture::{Fixture, place_of};
use crate::helm::Helm;
use crate::kinds::{self, Expected};
use crate::machine::OUTSIDE;
use crate::pods::{PORT, injected_at_once, labelled, plain};
use crate::runs::{MESH, MODE, SHOP};
use crate::scenarios::Pods;
use crate::workplace::Workplace;
use crate::ztunnel::{self, CaptureState};

const INTRODUCTION: &str = "
The cluster is yours until you leave this shell (exit). For instance:
  kubectl millrace list
  kubectl millrace explain mesh/ledger
  kubectl millrace prove mesh/ledger                             # by packets
  kubectl millrace simulate label namespace shop istio.io/dataplane-mode-  # which pods would leave
  kubectl label pod -n mesh ledger istio.io/dataplane-mode=none  # and one leaves
  kubectl exec -n istio-system ds/istio-cni-node -- install-cni history
  kubectl rollout restart -n istio-system ds/istio-cni-node
  helm upgrade istio-cni $CHART -n istio-system --reuse-values --set ambient.dnsCapture=false
$NODE_SHELL enters the node.";

/// Runs the whole tour; everything shown is also checked.
pub(crate) fn tour(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    let workplace = Workplace::new(fixture, places, &[]);
    fixture.checks.chapter("install the chart: helm install istio-cni deploy/charts/istio-cni");
    let helm = Helm::new(places, &fixture.control, agent.namespace());
    let values = [
        "profile=ambient",
        "repair.repairPods=true",
        "pullPolicy=Never",
        "millrace.image.hub=registry.invalid",
    ];
    let before = "helm template istio-cni deploy/charts/istio-cni -n kube-system --set profile=ambient --set pullPolicy=Never \
                  --set millrace.image.hub=registry.invalid | kubectl millrace check --pre -f - -o wide";
    let found = ["√ every node passed the check of what capture needs", "1 node checked by a pod"];
    workplace.ask(fixture, before, &found);
    let left = "kubectl get pods -A -l app.kubernetes.io/name=millrace-check -o name | wc -l";
    workplace.ask(fixture, left, &["0"]);
    let installed = helm.upgrade(&Agent::our_chart(), &values);
    let ready = installed.is_ok() && agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, format!("the agent is ready: {installed:?}"));
    fixture.checks.note(
        "programs of our tests take the places of ztunnel, of the sidecar proxies and of the applications",
    );
    ztunnel::deploy(fixture, CaptureState::InPod);
    fixture.checks.chapter("an application with sidecars, one in ambient mode, and pods outside of the mesh");
    let pods = kinds::check(fixture, &applications());
    show(fixture, &workplace, &pods);
    if stdin().is_terminal() {
        fixture.checks.chapter("a shell on the cluster");
        println!("{INTRODUCTION}");
        workplace.stay();
    }
}

fn applications() -> Pods {
    vec![
        (injected_at_once(SHOP, "web"), Expected::Sidecar),
        (plain(SHOP, "batch"), Expected::Direct),
        (plain(MESH, "ledger"), Expected::Ztunnel),
        (labelled(plain(MESH, "printer"), MODE, "none"), Expected::Direct),
    ]
}

/// Shows commands of an operator, and their output.
fn show(fixture: &mut Fixture, workplace: &Workplace, pods: &Pods) {
    fixture.checks.chapter("what an operator asks");
    workplace.ask(fixture, "kubectl get pods --all-namespaces", &["shop", "web", "Running"]);
    workplace.ask(fixture, "kubectl millrace check --wait 1m", &["√"]);
    let test = "helm test istio-cni -n istio-system --logs";
    workplace.ask(fixture, test, &["Succeeded", "The kernel and the files match the desired state."]);
    workplace.ask(fixture, "kubectl millrace list", &["mesh/ledger", "shop/web", "captured"]);
    workplace.ask(fixture, "kubectl millrace explain mesh/ledger", &["mesh/ledger: captured"]);
    for place in ["mesh/ledger", "shop/web"] {
        workplace.ask(fixture, &format!("kubectl millrace prove {place}"), &[&format!("{place}: proven")]);
    }
    workplace.ask(fixture, "kubectl millrace prove --all", &["mesh/ledger", "shop/web", "proven"]);
    let excluded = "helm template istio-cni deploy/charts/istio-cni -n istio-system --set profile=ambient --set \
                    millrace.image.hub=registry.invalid --set 'excludeNamespaces={kube-system,mesh}' | \
                    kubectl millrace simulate settings -f -";
    workplace.ask(fixture, excluded, &["mesh/ledger", "leaves", "kubernetes.exclude_namespaces"]);
    let connect = |pod: &str| format!("kubectl exec {pod} -- kit-traffic connect tcp --to {OUTSIDE}:{PORT}");
    workplace.ask(fixture, &connect("-n shop web -c app"), &[r#""server":"sidecar""#]);
    workplace.ask(fixture, &connect("-n mesh ledger"), &[r#""server":"outside""#]);
    workplace.ask(fixture, "kubectl logs -n istio-system ds/ztunnel --tail=20", &[r#""via":"outbound""#]);
    fixture.checks.chapter("somebody on the node flushes the rules of both applications");
    for name in ["web", "ledger"] {
        let of_that_name = |(pod, _): &&(Value, Expected)| pod["metadata"]["name"] == name;
        let (pod, expected) = pods.iter().find(of_that_name).expect("it is one of the applications");
        fixture.flush_rules(pod);
        let place = place_of(pod);
        let words = [&format!("{place}: captured"), "changed by iptables"];
        workplace.ask(fixture, &format!("kubectl millrace explain {place}"), &words);
        kinds::now(fixture, pod, *expected, "a connection after that");
    }
    fixture.checks.chapter("a pod leaves the mesh, and joins it again");
    let label = |value: &str| format!("kubectl label pod -n mesh ledger --overwrite {MODE}={value}");
    workplace.ask(fixture, &label("none"), &["labeled"]);
    workplace.ask(fixture, "kubectl millrace explain mesh/ledger", &["mesh/ledger: outside"]);
    workplace.ask(fixture, &label("ambient"), &["labeled"]);
    workplace.ask(fixture, "kubectl millrace explain mesh/ledger", &["mesh/ledger: captured"]);
    label_first_namespace(fixture, workplace);
}

const PAGE: &str = "docs/first-namespace.md";

/// Runs the page's commands for an operator who labels a namespace for the first time.
fn label_first_namespace(fixture: &mut Fixture, workplace: &Workplace) {
    fixture.checks.chapter("a first namespace joins, as docs/first-namespace.md has it");
    let simulate = "kubectl millrace simulate label namespace shop istio.io/dataplane-mode=ambient";
    let allow = "helm upgrade istio-cni deploy/charts/istio-cni -n istio-system --reuse-values --set 'millrace.allowedExceptions={outbound-ports}'";
    let list = "kubectl millrace list -n shop";
    let excepted = "outside by intent: outbound TCP ports 5432";
    let steps: [(&str, &[&str]); 14] = [
        ("kubectl millrace check", &["√ healthy"]),
        (simulate, &["shop/batch", "joins", "would join ambient mode: 1;"]),
        ("kubectl annotate namespace shop cni.istio.io/excludeOutboundPorts=5432", &["annotated"]),
        (simulate, &["AMBIENT_ALLOWED_EXCEPTIONS does not contain outbound-ports"]),
        (allow, &["deployed"]),
        ("kubectl rollout status -n istio-system daemonset/istio-cni-node", &["successfully rolled out"]),
        (simulate, &["joins", excepted]),
        ("kubectl label namespace shop istio.io/dataplane-mode=ambient", &["labeled"]),
        (list, &["shop/batch", "captured  in-pod", excepted]),
        (
            "kubectl millrace explain shop/batch",
            &["shop/batch: captured, mode in-pod", "outbound TCP ports 5432"],
        ),
        ("kubectl millrace prove --all -n shop", &["shop/batch  proven", "shop/web    proven"]),
        ("kubectl label namespace shop istio.io/dataplane-mode-", &["unlabeled"]),
        ("kubectl annotate namespace shop cni.istio.io/excludeOutboundPorts-", &["annotated"]),
        (list, &["shop/batch  node-1  outside"]),
    ];
    let page = std::fs::read_to_string(PAGE).expect("documentation");
    let commands: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let expected = steps.map(|(command, _)| command);
    fixture.checks.check(commands == expected, format!("{PAGE} has these commands: {commands:?}"));
    for (command, words) in steps {
        workplace.ask(fixture, command, words);
    }
}

//! Every command in a `console` block of the documentation is in [`COMMANDS`], with its test.

use std::collections::BTreeSet;

use crate::markdown::{Kind, Line, lines};
use crate::{pages, read, report};

use Run::{ByHand, ClusterOnly, Inside, Script, Test};

/// Test of a command of the documentation.
enum Run {
    /// This function in this file runs it, with its own names of pods and directories, and a plugin of kubectl without kubectl.
    Test(&'static str, &'static str),
    /// `kubectl exec` needs a cluster; the command after `--` is run by this function in this file.
    Inside(&'static str, &'static str),
    /// This script, which `.ci/run` runs or is, contains this text.
    Script(&'static str, &'static str),
    /// Only a cluster, a registry or a container engine can execute it, for the given reason.
    ClusterOnly(&'static str),
    /// For contributors; the reason names what CI runs instead.
    ByHand(&'static str),
}

const CLI: &str = "tests/scale/millrace_cli.rs";
const EXPLAIN: Run = Inside("tests/cluster/explain_cli/in_pod.rs", "captured_held_and_refused");
const APPLY: Run = ClusterOnly(
    "kubectl and a registry; the_api_server_takes_every_document_to_the_letter creates the same objects, and hack/e2e runs them",
);
const PUSH: Run = ClusterOnly("Docker and a registry; hack/image makes the image for hack/e2e");
const RELEASE: Run =
    ByHand("needs a tag, and builds everything again; CI runs hack/build, hack/sbom and --check");
const FIPS: Run =
    ByHand("compiles the module for minutes; .github/workflows/fips.yml runs hack/test-fips, which runs it");
const CERTIFIED: Run = ByHand(
    "another Cargo.lock than the one that is tested; docs/releases.md says that no workflow builds it",
);
/// The script runs every command of the section verbatim.
const VERIFY: Run = Script("hack/test-registry", "docs/verify.md");
/// The function runs every command of its page verbatim.
const FOLLOWED: Run = Test("tests/e2e/registry.rs", "follow_page");
const ISTIOCTL: Run = ClusterOnly(
    "istioctl and a cluster; docs/migrate.md says what was run by hand, and a test renders the manifest's values",
);
const OPERATOR: Run = ClusterOnly("the Sail operator, which no test runs; docs/migrate.md says so");
const ARGO: Run = ClusterOnly("Argo CD, which no test runs; a test renders the manifest's values");
const FLUX: Run = ClusterOnly("Flux, which no test runs; a test renders the manifest's values");
const CILIUM: Run = ClusterOnly("Cilium, which no test installs; docs/cilium.md says so");
/// The function runs every command of its page verbatim.
const FIRST: Run = Test("tests/e2e/tour.rs", "label_first_namespace");
/// The function runs every command of its page verbatim.
const CANARY: Run = Test("tests/e2e/canary.rs", "follow_page");
const LABEL: Run = ClusterOnly("kubectl; hack/demo and hack/demo --in-pod set the same label");

/// Commands as in the documentation, without prompt and comment.
const COMMANDS: &[(&str, Run)] = &[
    // Building and showing.
    ("./hack/test", Script(".ci/run", "./hack/test")),
    ("./hack/build", Script(".ci/run", "hack/build")),
    ("./hack/demo", Script(".ci/run", "hack/demo")),
    ("./hack/demo --in-pod", Script(".ci/run", "hack/demo --in-pod")),
    ("./hack/demo --cluster", Script(".ci/run", "hack/demo --cluster")),
    (
        "./hack/demo --api",
        ByHand(
            "takes longer on a busy machine than its checks allow; the tests of `cluster` run the same steps against an API server",
        ),
    ),
    (
        "cargo build --workspace --bins --tests",
        ByHand("hack/test builds the programs, and the tests before it runs them"),
    ),
    (
        "KUBEBUILDER_ASSETS=$(hack/envtest) MILLRACE_HELM=$(hack/helm) cargo test --workspace --test in-pod -- inpod_drift",
        ByHand("hack/test runs all tests of that program in the same way"),
    ),
    // Kernel state.
    (
        "nsenter --net=/proc/PID/ns/net iptables-save -t nat",
        Test("tests/sidecar/engine.rs", "every_rule_set_of_a_pod_is_what_the_tool_makes"),
    ),
    (
        "nsenter --net=/proc/PID/ns/net nft list ruleset",
        Test("tests/sidecar/native.rs", "an_ambient_pods_tables_are_istios_to_the_letter"),
    ),
    // Installing and removing.
    (
        "docker build -f deploy/Dockerfile -t REGISTRY/install-cni:TAG . && docker push REGISTRY/install-cni:TAG",
        PUSH,
    ),
    (
        "docker build -f deploy/Dockerfile.ambient -t REGISTRY/install-cni:TAG-ambient . && docker push REGISTRY/install-cni:TAG-ambient",
        PUSH,
    ),
    ("sed 's|image: .*|image: REGISTRY/install-cni:TAG|' deploy/istio-cni.yaml | kubectl apply -f -", APPLY),
    (
        "sed 's|image: .*|image: REGISTRY/install-cni:TAG|' deploy/istio-cni-ambient.yaml | kubectl apply -f -",
        APPLY,
    ),
    (
        "sed 's|image: .*|image: REGISTRY/install-cni:TAG|' deploy/istio-cni-in-pod.yaml | kubectl apply -f -",
        APPLY,
    ),
    (
        "sed 's|image: .*|image: REGISTRY/install-cni:TAG|' deploy/istio-cni-taint.yaml | kubectl apply -f -",
        APPLY,
    ),
    (
        r#"kubectl get pods -A -o jsonpath='{range .items[*]}{.metadata.namespace}/{.metadata.name} {.spec.initContainers[*].name}{"\n"}{end}' | grep istio-validation"#,
        ClusterOnly("kubectl; it lists pods by the name of an init container"),
    ),
    (
        "helm uninstall istio-cni -n istio-system",
        ClusterOnly(
            "Helm and a cluster; tests/cluster/chart/release.rs uninstalls a release from a real API server",
        ),
    ),
    (
        "kubectl -n istio-system wait --for=delete pod -l k8s-app=istio-cni-node --timeout=5m",
        ClusterOnly("kubectl; it waits for the agents' pods"),
    ),
    (
        "kubectl -n istio-system delete pod istio-cni-test --ignore-not-found",
        ClusterOnly("kubectl; the pod is that of helm test"),
    ),
    (
        "sed 's/namespace: kube-system/namespace: istio-system/' deploy/millrace-viewer.yaml | kubectl apply -f -",
        ClusterOnly("kubectl; the tests of `scale` create the same objects"),
    ),
    // Labelling a namespace for the first time.
    ("kubectl annotate namespace shop cni.istio.io/excludeOutboundPorts=5432", FIRST),
    (
        "helm upgrade istio-cni deploy/charts/istio-cni -n istio-system --reuse-values --set 'millrace.allowedExceptions={outbound-ports}'",
        FIRST,
    ),
    ("kubectl rollout status -n istio-system daemonset/istio-cni-node", FIRST),
    ("kubectl millrace list -n shop", FIRST),
    ("kubectl millrace explain shop/batch", FIRST),
    ("kubectl millrace prove --all -n shop", FIRST),
    ("kubectl label namespace shop istio.io/dataplane-mode-", FIRST),
    ("kubectl annotate namespace shop cni.istio.io/excludeOutboundPorts-", FIRST),
    ("kubectl label namespace shop istio.io/dataplane-mode=ambient", LABEL),
    (
        "kubectl -n kube-system delete daemonset istio-cni-node --cascade=foreground",
        ClusterOnly("kubectl; everything_goes_when_the_daemon_set_is_being_deleted sends the same request"),
    ),
    (
        "kubectl delete -f deploy/istio-cni.yaml --ignore-not-found",
        ClusterOnly("kubectl; hack/e2e deletes the same objects"),
    ),
    (
        "kubectl delete -f deploy/istio-cni-taint.yaml",
        ClusterOnly("kubectl; the manifest's objects are created by the tests of node_taint"),
    ),
    (
        "kubectl taint nodes --all NodeReadiness:NoSchedule-",
        ClusterOnly("kubectl, and nodes whose controller has been removed"),
    ),
    (
        "kubectl apply -f deploy/admission-policy.yaml",
        ClusterOnly("kubectl; the_api_server_takes_every_document_to_the_letter creates the same objects"),
    ),
    (
        "kubectl annotate namespace shop cni.istio.io/excludeOutboundPorts=5432,6379",
        ClusterOnly(
            "kubectl; a_namespace_speaks_for_its_pods_and_a_pod_for_itself gives a namespace such an annotation",
        ),
    ),
    (
        "kubectl label namespace shop pod-security.kubernetes.io/enforce=restricted",
        ClusterOnly("kubectl, and Kubernetes' own admission"),
    ),
    // The chart and the cluster-wide command.
    (
        "helm upgrade --install istio-cni ./deploy/charts/istio-cni -n istio-system -f my-istio-values.yaml --set millrace.image.hub=REGISTRY --set millrace.image.tag=TAG",
        ClusterOnly(
            "a registry and a cluster; hack/e2e upgrades a release from Istio's chart to ours and back on a real node",
        ),
    ),
    (
        "helm test istio-cni -n istio-system --logs",
        Test(
            "tests/cluster/chart/release.rs",
            "a_release_of_istios_chart_becomes_ours_and_istios_again_and_goes",
        ),
    ),
    (
        "helm upgrade istio-cni ./deploy/charts/istio-cni -n istio-system -f my-istio-values.yaml --set millrace.image.hub=REGISTRY --set millrace.image.tag=TAG --set updateStrategy.type=OnDelete",
        ClusterOnly(
            "a registry and a cluster; the_api_server_takes_every_object has a DaemonSet with this strategy",
        ),
    ),
    (
        "kubectl -n istio-system delete pod -l k8s-app=istio-cni-node --field-selector spec.nodeName=node-7",
        ClusterOnly("kubectl; tests of shutdowns delete the agent's pod while its DaemonSet stays"),
    ),
    // A second release on some nodes.
    ("kubectl create namespace istio-cni-canary", CANARY),
    ("kubectl label namespace istio-cni-canary pod-security.kubernetes.io/enforce=privileged", CANARY),
    ("kubectl apply -f canary-bindings.yaml", CANARY),
    (
        "helm upgrade --install istio-cni-canary ./deploy/charts/istio-cni -n istio-cni-canary -f my-istio-values.yaml -f canary-values.yaml",
        CANARY,
    ),
    (
        "helm upgrade istio-cni ./deploy/charts/istio-cni -n istio-system -f my-istio-values.yaml -f beside-canary.yaml",
        CANARY,
    ),
    ("kubectl label node node-2 example.com/istio-cni=canary", CANARY),
    ("kubectl rollout status -n istio-cni-canary daemonset/istio-cni-node", CANARY),
    ("kubectl label node node-2 example.com/istio-cni-", CANARY),
    ("helm uninstall istio-cni-canary -n istio-cni-canary", CANARY),
    ("kubectl delete -f canary-bindings.yaml", CANARY),
    ("helm upgrade istio-cni ./deploy/charts/istio-cni -n istio-system -f my-istio-values.yaml", CANARY),
    (
        "helm template istio-cni ./deploy/charts/istio-cni --set millrace.strict=true --set repiar.enabled=false",
        Test(
            "tests/cluster/chart/unknown.rs",
            "an_unknown_value_is_an_error_if_asked_for_and_below_millrace",
        ),
    ),
    (
        "kubectl millrace check",
        Test(CLI, "a_check_of_300_nodes_and_10000_pods_finds_what_is_wrong_within_ten_seconds"),
    ),
    ("kubectl millrace check --pre", Test(CLI, "before_an_installation")),
    (
        "helm template istio-cni deploy/charts/istio-cni -n kube-system -f values.yaml | kubectl millrace check --pre -f -",
        Test("tests/e2e/tour.rs", "tour"),
    ),
    ("kubectl millrace check -n cli-mesh --node cli-n20", Test(CLI, "one_namespace")),
    ("kubectl millrace explain cli-mesh/pod-20", Test(CLI, "explain")),
    ("kubectl millrace explain shop/web", Test(CLI, "explain")),
    ("kubectl millrace prove shop/web", Test("tests/e2e/cluster_command.rs", "prove")),
    ("kubectl millrace list --bypassing", Test(CLI, "list")),
    (
        "kubectl millrace simulate label namespace shop istio.io/dataplane-mode=ambient",
        Test("tests/e2e/tour.rs", "show"),
    ),
    (
        "helm template istio-cni deploy/charts/istio-cni -n istio-system -f values.yaml | kubectl millrace simulate settings -f -",
        Test(CLI, "simulate_settings"),
    ),
    (
        "kubectl millrace simulate settings AMBIENT_ALLOWED_EXCEPTIONS=outbound-ports",
        Test(CLI, "simulate_settings"),
    ),
    ("kubectl millrace verify", Test(CLI, "verify_and_bundle")),
    ("kubectl millrace verify --node cli-n22", Test(CLI, "verify_and_bundle")),
    // Releases.
    ("./hack/release --check", Script(".ci/run", "hack/release --check")),
    ("git checkout v0.1.0 && ./hack/release v0.1.0", RELEASE),
    ("./hack/release --twice v0.1.0", RELEASE),
    ("./hack/build --fips", FIPS),
    ("./hack/image --fips", FIPS),
    ("./hack/sbom --fips", FIPS),
    ("cargo update ureq --precise 3.4.2", CERTIFIED),
    ("cargo update rustls --precise 0.23.43", CERTIFIED),
    ("cargo update rustls-webpki --precise 0.103.13", CERTIFIED),
    ("cargo update aws-lc-rs --precise 1.17.4", CERTIFIED),
    ("openssl dgst -sha256 -verify millrace.pub -signature SHA256SUMS.sig SHA256SUMS", VERIFY),
    ("sha256sum --check --ignore-missing SHA256SUMS", VERIFY),
    (
        "cosign verify-blob --key millrace.pub --insecure-ignore-tlog --bundle SHA256SUMS.sigstore.json SHA256SUMS",
        VERIFY,
    ),
    (
        "cosign verify-blob --key millrace.pub --insecure-ignore-tlog --bundle millrace-0.1.0-linux-amd64.tar.gz.sigstore.json millrace-0.1.0-linux-amd64.tar.gz",
        VERIFY,
    ),
    ("cosign verify --key millrace.pub --insecure-ignore-tlog REGISTRY/install-cni:0.1.0", VERIFY),
    ("cosign verify --key millrace.pub --insecure-ignore-tlog REGISTRY/charts/istio-cni:0.1.0", VERIFY),
    (
        "cosign verify-attestation --key millrace.pub --insecure-ignore-tlog --type slsaprovenance1 REGISTRY/install-cni:0.1.0 | jq --raw-output .payload | base64 --decode | jq .predicate",
        VERIFY,
    ),
    (
        "cosign verify-blob-attestation --key millrace.pub --insecure-ignore-tlog --type slsaprovenance1 --bundle provenance-0.1.0.sigstore.json millrace-0.1.0-linux-amd64.tar.gz",
        VERIFY,
    ),
    ("oras discover --platform linux/amd64 REGISTRY/install-cni:0.1.0", VERIFY),
    (
        "oras pull REGISTRY/install-cni@$(oras discover --platform linux/amd64 --artifact-type application/vnd.cyclonedx+json --format go-template='{{(index .referrers 0).digest}}' REGISTRY/install-cni:0.1.0)",
        VERIFY,
    ),
    (
        "hack/desktop darwin-amd64 darwin-arm64",
        ByHand("needs a Mac; CI compiles for it with hack/check-platforms"),
    ),
    ("helm verify --keyring millrace.gpg istio-cni-0.1.0.tgz", VERIFY),
    (
        r#"gpg --quick-generate-key "Millrace releases <ADDRESS>" rsa4096 sign 2y"#,
        Script("hack/test-registry", "--quick-generate-key"),
    ),
    ("gpg --armor --export ADDRESS >millrace.asc", Script("hack/test-registry", "--export >")),
    ("./hack/site", Script(".ci/run", "hack/site")),
    ("./hack/publish REGISTRY", Script("hack/test-registry", "hack/publish \"$registry\"")),
    ("cosign generate-key-pair", Script("hack/test-registry", "generate-key-pair")),
    (
        "helm upgrade --install istio-cni oci://REGISTRY/charts/istio-cni --version 0.1.0 -n istio-system -f my-istio-values.yaml",
        ClusterOnly("a registry and a cluster; hack/test-registry renders the same chart from a registry"),
    ),
    (
        "kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni version -o yaml",
        Inside("tests/installer/install_cli.rs", "the_version_comes_in_the_shapes_of_istio"),
    ),
    // From a registry.
    ("REGISTRY=registry.example/mesh/millrace VERSION=0.1.0", FOLLOWED),
    (r#"cosign login "${REGISTRY%%/*}" --username USER --password-stdin <password.txt"#, FOLLOWED),
    (
        r#"digest() { cosign verify --key millrace.pub --insecure-ignore-tlog "$1" | jq --exit-status --raw-output 'first(.[].critical | select(.type | endswith("/cosign/sign/v1")).image["docker-manifest-digest"])'; }"#,
        FOLLOWED,
    ),
    (
        r#"CHART=$(digest "$REGISTRY/charts/istio-cni:$VERSION") && IMAGE=$(digest "$REGISTRY/install-cni:$VERSION")"#,
        FOLLOWED,
    ),
    (
        r#"kubectl -n istio-system create secret docker-registry millrace-registry --docker-server="${REGISTRY%%/*}" --docker-username=USER --docker-password="$(cat password.txt)""#,
        FOLLOWED,
    ),
    (
        r#"helm upgrade --install istio-cni "oci://$REGISTRY/charts/istio-cni@$CHART" -n istio-system -f my-istio-values.yaml --set "image=$REGISTRY/install-cni@$IMAGE" --set "global.imagePullSecrets={millrace-registry}""#,
        FOLLOWED,
    ),
    ("kubectl -n istio-system rollout status daemonset/istio-cni-node --timeout=5m", FOLLOWED),
    (
        r#"kubectl -n istio-system get pods -l k8s-app=istio-cni-node -o jsonpath='{range .items[*]}{.spec.nodeName} {.status.containerStatuses[0].imageID}{"\n"}{end}' | grep "$IMAGE""#,
        FOLLOWED,
    ),
    ("kubectl millrace check --wait 1m", FOLLOWED),
    ("kubectl millrace prove --all", FOLLOWED),
    ("VERSION=0.2.0", FOLLOWED),
    (
        r#"helm upgrade istio-cni "oci://$REGISTRY/charts/istio-cni@$CHART" -n istio-system -f my-istio-values.yaml --set "image=$REGISTRY/install-cni@$IMAGE" --set "global.imagePullSecrets={millrace-registry}""#,
        FOLLOWED,
    ),
    ("helm upgrade istio-cni istio/cni --version 1.29.1 -n istio-system -f my-istio-values.yaml", FOLLOWED),
    // Performance.
    (
        "git clone --depth 1 --branch 1.29.1 https://github.com/istio/istio istio-1.29.1",
        ByHand("Istio's sources; CI takes those that Go has in its cache"),
    ),
    (
        "./hack/peers --source istio-1.29.1",
        ByHand("takes half an hour; CI runs hack/peers --source DIRECTORY --check"),
    ),
    // Migration.
    ("istioctl manifest generate -f istio.yaml | grep 'image: .*/install-cni'", ISTIOCTL),
    ("istioctl install -f istio.yaml", ISTIOCTL),
    (
        r#"helm upgrade --install istio-cni "oci://$REGISTRY/charts/istio-cni@$CHART" -n istio-system -f my-istio-values.yaml --set "image=$REGISTRY/install-cni@$IMAGE" --take-ownership"#,
        ISTIOCTL,
    ),
    (
        "kubectl -n istio-system label daemonset,configmap,serviceaccount,role,rolebinding,resourcequota -l operator.istio.io/component=Cni operator.istio.io/managed-",
        ISTIOCTL,
    ),
    (
        "kubectl label clusterrole,clusterrolebinding -l operator.istio.io/component=Cni operator.istio.io/managed-",
        ISTIOCTL,
    ),
    ("kubectl -n istio-system delete secret -l owner=helm,name=istio-cni", ISTIOCTL),
    (
        r#"helm upgrade istio-cni istio/cni --version 1.29.1 -n istio-system -f my-istio-values.yaml --set "image=$REGISTRY/install-cni@$IMAGE""#,
        ClusterOnly(
            "Istio's repository of charts; tests/cluster/istio_charts.rs sets the same value in its recorded charts",
        ),
    ),
    (
        r#"kubectl patch istiocni default --type=merge -p "{\"spec\":{\"values\":{\"cni\":{\"image\":\"$REGISTRY/install-cni@$IMAGE\",\"env\":{\"SYSTEM_NAMESPACE\":\"ztunnel\"}}}}}""#,
        OPERATOR,
    ),
    ("kubectl -n istio-cni rollout status daemonset/istio-cni-node --timeout=5m", OPERATOR),
    (
        r#"kubectl patch istiocni default --type=merge -p '{"spec":{"values":{"cni":{"image":null}}}}'"#,
        OPERATOR,
    ),
    ("argocd app diff istio-cni", ARGO),
    ("argocd app sync istio-cni", ARGO),
    ("argocd app wait istio-cni --health --timeout 300", ARGO),
    ("kubectl -n istio-system create secret generic millrace-key --from-file=millrace.pub", FLUX),
    ("flux reconcile helmrelease istio-cni -n istio-system --with-source", FLUX),
    ("flux get helmrelease istio-cni -n istio-system", FLUX),
    // Beside Cilium.
    ("helm upgrade cilium cilium/cilium -n kube-system --reuse-values -f cilium-values.yaml", CILIUM),
    ("kubectl -n kube-system rollout restart daemonset/cilium", CILIUM),
    ("kubectl -n kube-system rollout status daemonset/cilium --timeout=10m", CILIUM),
    (
        "kubectl -n kube-system get configmap cilium-config -o yaml | grep -E 'cni-exclusive|bpf-lb-sock|enable-host-legacy-routing|enable-bpf-masquerade|kube-proxy-replacement|enable-ztunnel'",
        ClusterOnly("kubectl and Cilium; before_an_installation reads the same ConfigMap with these keys"),
    ),
    // Diagnosis.
    ("kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni explain shop/web", EXPLAIN),
    (
        "kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni check",
        Inside(
            "tests/in-pod/inpod_preflight.rs",
            "a_healthy_node_passes_before_and_with_an_agent_and_nothing_of_it_changes",
        ),
    ),
    (
        "kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni prove shop/web",
        Inside(
            "tests/in-pod/inpod_proof.rs",
            "a_captured_pod_is_proven_and_neither_the_proxy_nor_the_network_sees_a_packet",
        ),
    ),
    (
        "kubectl get pod -n shop web -o jsonpath='{.spec.nodeName}{\"\\n\"}'",
        ClusterOnly("kubectl; millrace finds the agent of a pod's node by the same two requests"),
    ),
    (
        "kubectl -n kube-system get pods -l k8s-app=istio-cni-node --field-selector spec.nodeName=node-7 -o name",
        ClusterOnly("kubectl; millrace finds the agent of a pod's node by the same two requests"),
    ),
    (
        "install-cni list --bypassing || echo \"pods are bypassing the mesh\"",
        Test("tests/installer/commands_cli.rs", "pods_are_listed_as_asked"),
    ),
    (
        "kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni state",
        Inside("tests/installer/commands_cli.rs", "state_and_plan_are_shown_in_three_forms"),
    ),
    (
        "kubectl -n kube-system exec istio-cni-node-x7k2p -- install-cni bundle -f - > bundle.tar.gz",
        Inside("tests/installer/commands_cli.rs", "a_bundle_has_everything_but_secrets"),
    ),
    (
        "kubectl -n kube-system port-forward istio-cni-node-x7k2p 9876",
        ClusterOnly("kubectl; the page that it leads to is tested by page_browser"),
    ),
];

/// Commands without prompt, comment and continuation.
fn commands(block: &[Line<'_>]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_continued = false;
    for line in block {
        let prompted = line.text.strip_prefix("$ ").or_else(|| line.text.strip_prefix("# "));
        let text = match prompted {
            Some(text) => text,
            None if is_continued => line.text.trim_start(),
            None => continue, // output of a command
        };
        let text = text.find("  #").map_or(text, |comment| &text[..comment]).trim_end();
        let (text, continues) = text.strip_suffix('\\').map_or((text, false), |text| (text, true));
        match commands.last_mut() {
            Some(last) if is_continued => last.push_str(text),
            _ => commands.push(text.to_owned()),
        }
        is_continued = continues;
    }
    commands
}

/// All commands with their places, and faults of blocks.
fn documented() -> (Vec<(String, String)>, Vec<String>) {
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for page in pages() {
        let text = read(&page);
        let lines = lines(&text);
        for block in lines.chunk_by(|one, next| one.kind == next.kind && !(one.fence && next.fence)) {
            let Kind::Block(language) = block[0].kind else { continue };
            let place = format!("{page}:{}", block[0].number);
            let commands = commands(block);
            match language {
                "console" if commands.is_empty() => findings.push(format!("{place}: no command in it")),
                "console" => found.extend(commands.into_iter().map(|command| (place.clone(), command))),
                "sh" | "bash" | "shell" => findings.push(format!("{place}: write console, with a prompt")),
                "" if block.iter().any(|line| line.text.starts_with("$ ")) => {
                    findings.push(format!("{place}: a command, so the block is of console"));
                }
                _ => {}
            }
        }
    }
    (found, findings)
}

/// Fault of an entry.
fn complaint(command: &str, run: &Run) -> Option<String> {
    let contains =
        |file: &str, text: &str| (!read(file).contains(text)).then(|| format!("no {text:?} in {file}"));
    match run {
        Test(file, function) => contains(file, &format!("fn {function}(")),
        Inside(..) if !command.contains(" exec ") => Some("Inside is for kubectl exec".to_owned()),
        Inside(file, function) => contains(file, &format!("fn {function}(")),
        Script(file, text) => contains(file, text).or_else(|| match *file {
            ".ci/run" => None,
            file => contains(".ci/run", file),
        }),
        ClusterOnly(why) | ByHand(why) => why.is_empty().then(|| "no reason".to_owned()),
    }
}

#[test]
fn every_command_is_executed_by_a_test_or_marked() {
    let (found, mut findings) = documented();
    let known: BTreeSet<&str> = COMMANDS.iter().map(|(command, _)| *command).collect();
    assert_eq!(known.len(), COMMANDS.len(), "each command once");
    let unknown = found.iter().filter(|(_, command)| !known.contains(command.as_str()));
    findings.extend(unknown.map(|(place, command)| format!("{place}: not in COMMANDS: {command}")));
    let found: BTreeSet<&str> = found.iter().map(|(_, command)| command.as_str()).collect();
    findings.extend(
        known.difference(&found).map(|command| format!("in COMMANDS, and not in the docs: {command}")),
    );
    let wrong = COMMANDS.iter().filter_map(|(command, run)| Some((command, complaint(command, run)?)));
    findings.extend(wrong.map(|(command, wrong)| format!("{command}: {wrong}")));
    report("commands are not accounted for", &findings);
}

#[test]
fn a_command_is_what_is_typed() {
    let page = "```console\n$ one --flag \\\n    more   # why\noutput\n# two\n```\n";
    assert_eq!(commands(&lines(page)), ["one --flag more", "two"]);
}

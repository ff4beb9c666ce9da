//! Values that the chart does not know.

use super::helm::Helm;

fn complaint(helm: &Helm, set: &[&str]) -> String {
    helm.template(set).err().unwrap_or_else(|| panic!("{set:?} is taken"))
}

/// Istio's chart ignores unknown values, so a file for it may have any.
fn is_unknown(line: &&str) -> bool {
    line.starts_with("  unknown value ")
}

#[test]
fn an_unknown_value_has_no_effect_and_the_notes_name_it() {
    let Some(helm) = Helm::find() else { return };
    let rendered = helm.template(&[]).unwrap();
    for (set, unknown, closest) in [
        ("repiar.enabled=true", "repiar.enabled", Some("repair.enabled")),
        ("cni.repair.lablPods=true", "cni.repair.lablPods", Some("cni.repair.labelPods")),
        ("nodeCondition=true", "nodeCondition", Some("millrace.nodeCondition")),
        ("nameOverride=x", "nameOverride", None),
        ("priorityClassName=x", "priorityClassName", None),
        ("commonLabels.a=b", "commonLabels.a", None),
        ("serviceAccount.annotations.a=b", "serviceAccount.annotations.a", None),
        ("extraVolumes[0].name=x", "extraVolumes", None),
        ("hostNetwork=true", "hostNetwork", None),
        ("imagePullSecrets[0]=x", "imagePullSecrets", Some("global.imagePullSecrets")),
    ] {
        assert_eq!(helm.template(&[set]).unwrap(), rendered, "{set}");
        let notes = helm.notes(&[set]);
        let unknowns: Vec<_> = notes.lines().filter(is_unknown).collect();
        let suggestion =
            closest.map_or_else(|| ".".to_owned(), |closest| format!("; did you mean \"{closest}\"?"));
        let expected = format!("  unknown value \"{unknown}\"{suggestion} See docs/helm.md for all values");
        assert_eq!(unknowns, [expected], "{set}");
    }
    let notes = helm.notes(&["repair.enabled=true"]);
    assert_eq!(notes.lines().find(is_unknown), None, "{notes}");
}

#[test]
fn an_unknown_value_is_an_error_if_asked_for_and_below_millrace() {
    let Some(helm) = Helm::find() else { return };
    for (set, unknown, closest) in [
        ("repiar.enabled=true", "repiar.enabled", "repair.enabled"),
        ("repair.lablPods=true", "repair.lablPods", "repair.labelPods"),
        ("cni.repair.lablPods=true", "cni.repair.lablPods", "cni.repair.labelPods"),
        ("cniBin=/x", "cniBin", "cniBinDir"),
        // At the wrong path.
        ("dnsCapture=true", "dnsCapture", "ambient.dnsCapture"),
        ("nodeCondition=true", "nodeCondition", "millrace.nodeCondition"),
        ("millrace.nodecondition=true", "millrace.nodecondition", "millrace.nodeCondition"),
        // Nothing is similar: a value at the same path.
        ("millrace.image.repository=x", "millrace.image.repository", "millrace.image.tag"),
        ("resourceQuota.pods=1", "resourceQuota.pods", "resourceQuotas.pods"),
    ] {
        let complaint = if set.starts_with("millrace.") {
            complaint(&helm, &[set])
        } else {
            complaint(&helm, &["millrace.strict=true", set])
        };
        let expected = format!("unknown value \"{unknown}\"; did you mean \"{closest}\"?");
        assert!(complaint.contains(&expected), "{set}: {complaint}");
    }
}

#[test]
fn a_value_of_the_wrong_type_and_an_unknown_overlay_are_errors() {
    let Some(helm) = Helm::find() else { return };
    for (set, expected) in [
        ("repair.enabled=maybe", "'/repair/enabled': got string, want boolean"),
        ("cni.repair.enabled=3", "'/cni/repair/enabled': got number, want boolean"),
        ("millrace.ambientCapture=pod", "'/millrace/ambientCapture': value must be one of"),
        ("platform=gkee", "unknown platform \"gkee\"; known are aks, "),
        ("profile=ambeint", "unknown profile \"ambeint\"; known are ambient, "),
        ("compatibilityVersion=1.99", "unknown compatibilityVersion \"1.99\"; known are 1.18, "),
    ] {
        let complaint = complaint(&helm, &[set]);
        assert!(complaint.contains(expected), "{set}: {complaint}");
    }
}

#[test]
fn combinations_that_cannot_work_are_errors() {
    let Some(helm) = Helm::find() else { return };
    for (set, expected) in [
        (
            &["millrace.admissionPolicy.enabled=true", "repair.repairPods=false", "repair.deletePods=true"][..],
            "millrace.admissionPolicy forbids",
        ),
        (&["istioOwnedCNIConfig=true", "chained=false"], "needs chained=true"),
        (&["updateStrategy.rollingUpdate.maxSurge=1"], "maxSurge cannot be used"),
        (&["cni.updateStrategy.rollingUpdate.maxSurge=10%"], "maxSurge cannot be used"),
        (&["millrace.proofInterval=10s", "repair.enabled=false"], "needs ambient mode or repair.repairPods"),
    ] {
        let complaint = helm.template(set).unwrap_err();
        assert!(complaint.contains(expected), "{set:?}: {complaint}");
    }
}

#[test]
fn what_a_refused_combination_leaves_unused_is_taken() {
    let Some(helm) = Helm::find() else { return };
    for set in [
        &["updateStrategy.rollingUpdate.maxSurge=0"][..],
        &["updateStrategy.rollingUpdate.maxSurge=0%"],
        &["updateStrategy.rollingUpdate.maxSurge=1", "updateStrategy.type=OnDelete"],
        &["updateStrategy.rollingUpdate.maxSurge=1", "rollingMaxUnavailable=2"],
        &["millrace.proofInterval=0s", "repair.enabled=false"],
        &["millrace.proofInterval=10s", "repair.enabled=false", "profile=ambient"],
    ] {
        assert!(helm.template(set).is_ok(), "{set:?}");
    }
}

/// One file serves several charts, and `global` applies to all of them.
#[test]
fn values_of_istios_other_charts_are_taken() {
    let Some(helm) = Helm::find() else { return };
    for set in [
        "global.hub=registry.example/istio",
        "global.mtls.enabled=true",
        "pilot.cni.enabled=true",
        "meshConfig.accessLogFile=x",
        "_internal_defaults_do_not_set.hub=x",
        "enabled=true",
    ] {
        assert!(helm.template(&[set]).is_ok(), "{set}");
    }
}

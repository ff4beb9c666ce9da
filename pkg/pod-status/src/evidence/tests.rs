use proptest::prelude::*;

use super::*;
use crate::state::RedirectionMode;

const VERIFIED: Evidence =
    Evidence { rules: RulesEvidence::Verified, proxy: ProxyEvidence::Serves, ..Evidence::UNKNOWN };
const ABSENT: Evidence = Evidence { rules: RulesEvidence::Absent { failing: false }, ..Evidence::UNKNOWN };
const LEAKS: Evidence = Evidence { rules: RulesEvidence::Incomplete { holds: false }, ..VERIFIED };
const HOLDS: Evidence = Evidence { rules: RulesEvidence::Incomplete { holds: true }, ..VERIFIED };

#[test]
fn each_state_follows_from_its_evidence() {
    use CaptureState::{Bypassing, Captured, Held, Leaving, Outside, Pending, Unknown};
    use Redirection::{Enabled, None as Unset};
    const MARKED: Option<Redirection> = Some(Redirection::Pending);
    let starting = |evidence| Evidence { life: PodLife::Starting, ..evidence };
    let ending = |evidence| Evidence { life: PodLife::Ending, ..evidence };
    let awaited = |evidence| Evidence { awaited: true, ..evidence };
    let open = |evidence| Evidence { fails_open: true, ..evidence };
    let overruled = |evidence| Evidence { overruled: true, ..evidence };
    let by = |proxy, evidence: Evidence| Evidence { proxy, ..evidence };
    let of = |membership| Evidence { membership, ..VERIFIED };
    let rules = |rules| Evidence { rules, ..VERIFIED };
    let remains = |remains| of(MeshMembership::Outside { remains });
    let failing = Evidence { rules: RulesEvidence::Absent { failing: true }, ..Evidence::UNKNOWN };
    let cases = [
        ("captured", VERIFIED, Captured, Some(Enabled)),
        ("captured before its containers run", starting(VERIFIED), Captured, Some(Enabled)),
        ("put in place, about to be observed", rules(RulesEvidence::Applied), Captured, None),
        ("put in place again and again", rules(RulesEvidence::Doubtful), Unknown, MARKED),
        ("removed again and again", rules(RulesEvidence::Unstable), Pending, MARKED),
        ("the same, and overruled", overruled(rules(RulesEvidence::Unstable)), Bypassing, MARKED),
        ("the same, while an ADD waits", awaited(rules(RulesEvidence::Doubtful)), Unknown, None),
        ("cannot be observed", Evidence::UNKNOWN, Unknown, None),
        ("runs without rules", ABSENT, Bypassing, None),
        ("about to run without rules", starting(ABSENT), Pending, None),
        ("its ADD waits for rules", awaited(ABSENT), Pending, None),
        ("its rules cannot be made", failing, Bypassing, MARKED),
        ("without rules, at its end", ending(ABSENT), Pending, None),
        ("a rule was removed", LEAKS, Bypassing, Some(Unset)),
        ("a rule was removed, and traffic is held", HOLDS, Held, Some(Unset)),
        ("a rule was removed, and the fallback is open", open(HOLDS), Bypassing, Some(Unset)),
        ("another component's rules precede ours", overruled(VERIFIED), Bypassing, Some(Enabled)),
        ("what would hold its traffic is overruled", overruled(HOLDS), Bypassing, Some(Unset)),
        (
            "the same without ztunnel",
            overruled(by(ProxyEvidence::Unavailable, VERIFIED)),
            Bypassing,
            Some(Enabled),
        ),
        ("overruled, at its end", ending(overruled(VERIFIED)), Pending, Some(Enabled)),
        ("ztunnel restarts", by(ProxyEvidence::Unavailable, VERIFIED), Held, Some(Enabled)),
        (
            "ztunnel restarts, fallback open",
            open(by(ProxyEvidence::Unavailable, VERIFIED)),
            Bypassing,
            Some(Enabled),
        ),
        ("ztunnel does not take it", by(ProxyEvidence::Absent, VERIFIED), Held, MARKED),
        ("its ADD waits for ztunnel", awaited(by(ProxyEvidence::Absent, VERIFIED)), Pending, None),
        ("the agent has restarted", by(ProxyEvidence::Announced, VERIFIED), Held, None),
        ("leaves", of(MeshMembership::Leaving), Leaving, None),
        ("left, and a rule stayed", remains(true), Leaving, Some(Unset)),
        ("outside", remains(false), Outside, Some(Unset)),
        ("nobody knows the capture mode", of(MeshMembership::Undetermined), Unknown, None),
    ];
    for (what, evidence, state, annotation) in cases {
        assert_eq!(evidence.classify(), CaptureStatus { state, annotation }, "{what}");
    }
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let membership = prop_oneof![
        4 => Just(MeshMembership::Member),
        1 => any::<bool>().prop_map(|remains| MeshMembership::Outside { remains }),
        1 => Just(MeshMembership::Leaving),
        1 => Just(MeshMembership::Undetermined),
    ];
    let life = prop_oneof![Just(PodLife::Starting), Just(PodLife::Running), Just(PodLife::Ending)];
    let rules = prop_oneof![
        Just(RulesEvidence::Unobserved),
        any::<bool>().prop_map(|failing| RulesEvidence::Absent { failing }),
        any::<bool>().prop_map(|holds| RulesEvidence::Incomplete { holds }),
        Just(RulesEvidence::Applied),
        Just(RulesEvidence::Doubtful),
        Just(RulesEvidence::Unstable),
        Just(RulesEvidence::Verified),
    ];
    let proxy = prop_oneof![
        Just(ProxyEvidence::Serves),
        Just(ProxyEvidence::Unavailable),
        Just(ProxyEvidence::Announced),
        Just(ProxyEvidence::Absent)
    ];
    (membership, life, rules, proxy, any::<[bool; 3]>()).prop_map(
        |(membership, life, rules, proxy, [overruled, fails_open, awaited])| Evidence {
            membership,
            life,
            rules,
            proxy,
            overruled,
            fails_open,
            awaited,
        },
    )
}

proptest! {
    /// Two conditions make a pod's traffic fail without changing the annotation that istiod reads: restarts of ztunnel, and rules
    /// of another component. Otherwise the annotation is `enabled` if and only if the pod is captured.
    #[test]
    fn the_annotation_says_enabled_if_and_only_if_the_pod_is_captured(evidence in evidence()) {
        let proxy = if evidence.proxy == ProxyEvidence::Unavailable { ProxyEvidence::Serves } else { evidence.proxy };
        let aside = Evidence { proxy, overruled: false, ..evidence }.classify();
        let captured = aside.state == CaptureState::Captured;
        match evidence.classify().annotation {
            Some(Redirection::Enabled) => prop_assert!(captured),
            Some(_) => prop_assert!(!captured),
            None => prop_assert!(!captured || evidence.rules == RulesEvidence::Applied, "{:?}", evidence),
        }
    }

    /// No pod is reported as captured whose traffic bypasses the mesh or is held.
    #[test]
    fn a_captured_pod_has_rules_in_place_and_a_proxy_that_serves_it(evidence in evidence()) {
        let captured = evidence.classify().state == CaptureState::Captured;
        let complete = evidence.membership == MeshMembership::Member
            && matches!(evidence.rules, RulesEvidence::Applied | RulesEvidence::Verified)
            && evidence.proxy == ProxyEvidence::Serves
            && !evidence.overruled;
        prop_assert_eq!(captured, complete);
    }

    /// Less evidence never results in a better state.
    #[test]
    fn what_ceases_to_be_observed_does_not_become_captured(evidence in evidence()) {
        let blind = Evidence { rules: RulesEvidence::Unobserved, ..evidence }.classify();
        prop_assert!(blind.state != CaptureState::Captured && blind.annotation != Some(Redirection::Enabled));
    }
}

#[test]
fn names_in_json_are_the_words_of_the_states() {
    for state in CaptureState::WORST_FIRST {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for mode in [RedirectionMode::Sidecar, RedirectionMode::Node, RedirectionMode::InPod] {
        assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
    }
}

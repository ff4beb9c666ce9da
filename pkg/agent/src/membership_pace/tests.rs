use proptest::prelude::*;

use super::*;

const IN: AmbientStanding = AmbientStanding::Pending(EnrolmentReason::NamespaceLabel);
const OUT: AmbientStanding = AmbientStanding::Out(SkipReason::NotLabelled);
const ENDED: AmbientStanding = AmbientStanding::Out(SkipReason::Terminated);

/// A pass over one pod, this many milliseconds after the start.
fn pass(pace: &mut MembershipPace, start: Instant, at: u64, shown: &AmbientStanding) -> AmbientStanding {
    let mut pod = Pod::default();
    pod.metadata.uid = "u1".into();
    pace.begin_observation(|_| true);
    let _ = pace.observe_pod(&pod.metadata.uid, shown, start + Duration::from_millis(at));
    pace.effective_standing(&pod, shown.clone())
}

#[test]
fn the_first_change_takes_effect_at_once_and_further_ones_after_two_seconds() {
    let (mut pace, start) = (MembershipPace::default(), Instant::now());
    let due = |pace: &MembershipPace| pace.due.map(|due| (due - start).as_millis());
    for (at, shown, effect, expected) in [
        (0, &OUT, &OUT, None),
        (100, &IN, &IN, None),
        (200, &OUT, &IN, Some(2100)),
        (300, &IN, &IN, None),
        (400, &OUT, &IN, Some(2100)),
        (2099, &OUT, &IN, Some(2100)),
        (2100, &OUT, &OUT, None),
        (2200, &IN, &OUT, Some(4100)),
        (2300, &ENDED, &ENDED, None),
        (9000, &OUT, &OUT, None),
        (9001, &IN, &IN, None),
    ] {
        assert_eq!(pass(&mut pace, start, at, shown), *effect, "{at}");
        assert_eq!(due(&pace), expected, "{at}");
        assert_eq!(pace.is_waiting(&"u1".into()), expected.is_some(), "{at}");
    }
    assert_eq!(pass(&mut pace, start, 9002, &OUT), IN);
    pace.reset_pod(&"u1".into());
    assert_eq!(pass(&mut pace, start, 9003, &OUT), OUT, "an ADD is not delayed");
}

#[test]
fn a_long_series_is_logged_at_its_beginning_and_at_its_end() {
    let (mut pace, start, uid) = (MembershipPace::default(), Instant::now(), PodUid::from("u1"));
    let mut notices = Vec::new();
    for second in 0..200_u64 {
        let shown = if second < 100 && second / 3 % 2 == 1 { &IN } else { &OUT };
        pace.begin_observation(|_| true);
        notices.extend(
            pace.observe_pod(&uid, shown, start + Duration::from_secs(second)).map(|one| (second, one)),
        );
        assert_eq!(pace.is_flapping(&uid), (21..162).contains(&second), "{second}");
    }
    assert_eq!(notices, [(21, SeriesNotice::Begins), (162, SeriesNotice::Ends(34))]);
    pace.begin_observation(|_| false);
    assert!(pace.pods.is_empty(), "a pod that is gone is forgotten");
}

proptest! {
    /// Whatever labels are shown, and when: a membership is in effect for at least two seconds, unless it was the first, and in the
    /// end it is the last one shown.
    #[test]
    fn memberships_change_at_a_bounded_rate_and_to_the_latest(
        shown in proptest::collection::vec((0..900_u64, any::<bool>()), 1..80)
    ) {
        let (mut pace, start) = (MembershipPace::default(), Instant::now());
        let (mut at, mut changes) = (0, Vec::new());
        let mut before = None;
        for (pause, is_in) in &shown {
            at += pause;
            let effect = pass(&mut pace, start, at, if *is_in { &IN } else { &OUT });
            if before.replace(effect.clone()).is_some_and(|before| before != effect) {
                changes.push(at);
            }
            prop_assert_eq!(pace.due.is_some(), (effect == IN) != *is_in, "what is late is due");
        }
        prop_assert!(changes.windows(2).all(|two| two[1] - two[0] >= 2000), "{:?}", changes);
        let last = if shown.last().is_some_and(|(_, is_in)| *is_in) { IN } else { OUT };
        let due = pace.due.map_or(at, |due| u64::try_from((due - start).as_millis()).unwrap_or(at));
        prop_assert_eq!(pass(&mut pace, start, due, &last), last);
    }
}

//! Updates of a subscription's range: what it lets in comes, and nothing comes twice.

use corelay::config::Limits;
use corelay::session::streams::ReadEnd;
use corelay::wire::lite::data::GroupHeader;
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::version::Version::Lite06;

use super::flights::{Scene, preferences};

/// Numbers of the groups the viewer was sent, in the order of their streams.
fn groups(scene: &Scene) -> Vec<u64> {
    let written = &scene.sessions.peers[&scene.prompt].fake.written;
    let groups = written.iter().filter(|(id, bytes)| id.is_uni() && bytes[0] == 0);
    groups
        .map(|(_, bytes)| GroupHeader::decode(&bytes[1..], Lite06).expect("a header").0.sequence)
        .collect()
}

fn update(scene: &mut Scene, prefs: Preferences) {
    let mut bytes = Vec::new();
    prefs.encode_update(Lite06, &mut bytes);
    let (viewer, request) = (scene.prompt, scene.request);
    scene.sessions.more(viewer, request, &bytes, ReadEnd::Blocked);
    scene.sessions.settle();
}

/// From `start` to `end`.
fn range(start: u64, end: Option<u64>) -> Preferences {
    Preferences { start: Some(start), end, ..preferences(9999) }
}

#[test]
fn what_was_left_out_comes_when_the_range_widens_and_the_rest_not_again() {
    let mut scene = Scene::new(&Limits::default());
    scene.publish(3);
    update(&mut scene, range(0, Some(1)));
    scene.publish(2);
    assert_eq!(groups(&scene), [0, 1, 2]);
    update(&mut scene, range(0, None));
    assert_eq!(groups(&scene), [0, 1, 2, 3, 4]);
    scene.publish(1);
    assert_eq!(groups(&scene), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn however_often_the_range_changes_no_group_comes_twice() {
    let mut scene = Scene::new(&Limits::default());
    for step in 0..40_u64 {
        scene.publish(1);
        let (start, end) = [(0, None), (step, None), (0, Some(step)), (step + 2, Some(step + 3))]
            [usize::try_from(step * 7 % 4).expect("below 4")];
        update(&mut scene, range(start, end));
    }
    update(&mut scene, range(0, None));
    scene.publish(3);
    let mut sent = groups(&scene);
    assert!(sent.len() > 10 && sent.ends_with(&[40, 41, 42]), "{sent:?}");
    let count = sent.len();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), count, "{sent:?}");
}

#[test]
fn frames_that_end_before_they_begin_are_no_group() {
    let mut scene = Scene::new(&Limits::default());
    let none = Preferences { frame_start: 1, frame_end: Some(0), ..range(1, Some(1)) };
    update(&mut scene, none);
    scene.publish(3);
    assert_eq!(groups(&scene), [0; 0]);
}

//! The tests under test: `wrong_relay.py` in the relay's place, right once and then wrong in one way after the other.
//! A test that passes with a relay it should catch is worth nothing. Run with `cargo test --test netns -- --ignored`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// A fault, and the tests that must fail on it.
const FAULTS: &[(&str, &[&str])] = &[
    (
        "no virtio header",
        &[
            "traffic::tcp_over_ipv6",
            "vlan::a_partial_checksum_behind_a_tag_is_completed_right",
        ],
    ),
    (
        "empty virtio header",
        &[
            "traffic::udp_both_ways_with_default_offloads",
            "mac::tcp_crosses_an_updating_relay",
        ],
    ),
    (
        "hears itself",
        &[
            "traffic::ping_by_both_ip_versions_without_duplicates",
            "hairpin::a_hairpin_reflects_each_frame_once",
        ],
    ),
    ("loses tags", &["vlan::tags_survive_with_their_identifiers"]),
    (
        "loses zero tags",
        &["vlan::tags_survive_with_their_identifiers"],
    ),
    (
        "one tag protocol",
        &["vlan::tags_survive_with_their_identifiers"],
    ),
    (
        "loses priorities",
        &["vlan::tags_survive_with_their_identifiers"],
    ),
    (
        "forgets the tag's length",
        &[
            "vlan::a_partial_checksum_behind_a_tag_stays_where_it_belongs",
            "vlan::a_partial_checksum_behind_a_tag_is_completed_right",
            "vlan::a_tagged_super_frame_crosses_whole",
            "vlan::a_tagged_super_frame_is_cut_right",
        ],
    ),
    (
        "counts buffers",
        &[
            "traffic::tcp_crosses_in_whole_super_frames",
            "traffic::udp_super_frames_keep_their_place_among_small_ones",
        ],
    ),
    ("cuts", &["jumbo::mtu_9000_for_ping_frames_and_tcp"]),
    (
        "pads",
        &["traffic::frames_of_every_size_arrive_byte_for_byte"],
    ),
    (
        "flips a bit",
        &[
            "traffic::frames_of_every_size_arrive_byte_for_byte",
            "traffic::udp_both_ways_with_default_offloads",
        ],
    ),
    (
        "loses",
        &[
            "traffic::udp_both_ways_with_default_offloads",
            "stop::a_flood_is_accounted_for_to_the_last_frame",
        ],
    ),
    (
        "doubles",
        &[
            "traffic::udp_both_ways_with_default_offloads",
            "stop::a_stop_under_load_loses_no_count",
        ],
    ),
    (
        "reorders",
        &["traffic::udp_both_ways_with_default_offloads"],
    ),
    (
        "two paths",
        &[
            "traffic::a_backlog_of_mixed_frames_leaves_in_order",
            "traffic::udp_super_frames_keep_their_place_among_small_ones",
        ],
    ),
    (
        "merges over bad checksums",
        &["coalesce::datagrams_merged_by_packet"],
    ),
    (
        "merges into other lengths",
        &["coalesce::datagrams_merged_by_packet"],
    ),
    (
        "merges and overtakes",
        &["coalesce::datagrams_merged_by_packet"],
    ),
    (
        "stalls",
        &["jumbo::frames_above_the_far_mtu_are_counted_and_stop_nothing"],
    ),
    ("numbers the rx port", &["mac::update_is_the_rule_of_l2fwd"]),
    (
        "source of the rx port",
        &["mac::update_is_the_rule_of_l2fwd"],
    ),
    (
        "one destination",
        &["mac::a_given_destination_replaces_the_rule_on_its_port_only"],
    ),
    (
        "no guard",
        &[
            "hairpin::the_guard_drops_multicast_and_counts_it",
            "hairpin::duplicate_address_detection_needs_the_guard",
        ],
    ),
    ("guards pairs", &["hairpin::the_guard_leaves_pairs_alone"]),
    (
        "hides kernel drops",
        &[
            "stop::a_flood_is_accounted_for_to_the_last_frame",
            "stop::a_backlog_at_the_stop_is_in_the_account",
        ],
    ),
    (
        "leaves a backlog",
        &["stop::a_backlog_at_the_stop_is_in_the_account"],
    ),
    (
        "no last snapshot",
        &["stop::a_stop_under_load_loses_no_count"],
    ),
    (
        "fails at the end",
        &["stop::nothing_is_left_behind_however_it_ends"],
    ),
];

/// Whether a test passes with `wrong_relay.py` in the relay's place.
fn passes(fault: &str, test: &str) -> bool {
    let relay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/netns/wrong_relay.py");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command
        .args(["--exact", test])
        .env("WRONG", fault)
        .env("L2RELAY_TEST_PROGRAM", relay);
    let output = command.output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "{test}: no such test");
    output.status.success()
}

#[test]
#[ignore = "minutes: it tests the tests"]
fn each_fault_is_caught_by_its_tests() {
    if crate::common::Net::open(&["probe"]).is_none() {
        return;
    }
    // As many at a time as tests run at a time elsewhere: most of a test is waiting.
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    let tests: BTreeSet<_> = FAULTS.iter().flat_map(|(_, tests)| *tests).collect();
    let right = tests.into_iter().map(|test| ("", *test));
    let wrong = FAULTS
        .iter()
        .flat_map(|(fault, tests)| tests.iter().map(move |test| (*fault, *test)));
    let queue = Mutex::new(right.chain(wrong));
    let next = || queue.lock().expect("no thread panics with it").next();
    let surprises = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some((fault, test)) = next() {
                    let is_right = fault.is_empty();
                    if passes(fault, test) == is_right {
                        continue;
                    }
                    let surprise = if is_right {
                        format!("{test} fails with a relay that is right")
                    } else {
                        format!("{test} does not notice a relay that {fault:?}")
                    };
                    surprises.lock().expect("likewise").push(surprise);
                }
            });
        }
    });
    let surprises = surprises.into_inner().expect("likewise");
    assert!(surprises.is_empty(), "{surprises:#?}");
}

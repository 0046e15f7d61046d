//! Examples for emulated topologies, run as a user runs them (`make test-containers`).

use std::path::PathBuf;
use std::process::Command;

use crate::common::{cpus, program};

fn example(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../docker")
        .join(path)
}

/// ComNetsEmu's chain in Mininet: half the round trip over two links of 20 ms is at least 40 ms, by both command lines.
#[test]
#[ignore = "needs Mininet: make test-containers"]
fn the_chain_in_mininet() {
    let core = cpus().last().expect("a CPU").to_string();
    for way in [&[][..], &["--l2fwd"], &["--no-relay"]] {
        let output = Command::new("timeout")
            .args(["-k1", "90", "/usr/bin/python3"])
            .arg(example("mininet/chain.py"))
            .args([
                "--l2relay",
                &program(),
                "--seconds",
                "1",
                "--delay",
                "20ms",
                "--relay-cpu",
                &core,
            ])
            .args(way)
            .output()
            .expect("timeout runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way:?}: {said}");
        let median = said
            .lines()
            .find_map(|line| line.split("percentile 50.000 =").nth(1))
            .unwrap_or_else(|| panic!("no median: {said}"));
        let median_us: f64 = median.trim().parse().expect("microseconds");
        assert!((40_000.0..80_000.0).contains(&median_us), "{way:?}: {said}");
        // 50 messages a second, and those of the warm-up before.
        let relayed = said.lines().find_map(|line| match way {
            ["--l2fwd"] => line.strip_prefix("Total packets received:"),
            _ => line
                .strip_prefix("relay-s1 ")
                .and_then(|rest| rest.trim_start().strip_prefix("up")),
        });
        let relayed = relayed.and_then(|rest| rest.split_whitespace().next());
        let relayed: u32 = relayed.map_or(0, |count| count.parse().expect("a number"));
        assert_eq!(relayed > 40, way != ["--no-relay"], "{way:?}: {said}");
    }
    let left = Command::new("ip")
        .args(["-o", "link"])
        .output()
        .expect("ip runs");
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(
        !left.contains("s1-eth") && !left.contains("relay-s1"),
        "left behind: {left}"
    );
}

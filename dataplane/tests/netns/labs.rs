//! Examples for emulated topologies, containers and clusters: run as a user runs them (`make test-containers`), or read as their
//! readers read them.

use std::collections::BTreeMap;
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

/// compose, containerlab and Kubernetes: the files are what their readers demand, and the relay takes the command in each.
#[test]
fn examples_are_well_formed() {
    let read = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("manifests.py")])
        .arg(example(""))
        .output()
        .expect("python3 runs");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let commands: BTreeMap<String, Vec<String>> =
        serde_json::from_slice(&read.stdout).expect("the commands");
    assert_eq!(commands.len(), 3);
    for (place, mut command) in commands {
        assert_eq!(command[0], "run", "{place}");
        // The example's core is 1, which need not be here.
        if let Some(at) = command.iter().position(|word| word == "--cores") {
            command[at + 1] = cpus()[0].to_string();
        }
        let checked = Command::new(program())
            .arg("config")
            .args(&command[1..])
            .arg("--print")
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
        assert!(checked.status.success(), "{place}: {said}");
    }
}

/// The recipe that builds in containers installs what the Makefile installs, and drops nothing it does.
#[test]
fn the_recipe_has_the_packages_of_the_makefile() {
    let text = |path: &str| {
        let path = example("..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let makefile = text("Makefile");
    let packages = makefile
        .lines()
        .find_map(|line| line.strip_prefix("BUILD_PACKAGES := "))
        .expect("the list");
    let recipe = text("docker/Dockerfile.build");
    let words: Vec<&str> = recipe.split_whitespace().collect();
    for package in packages.split_whitespace() {
        assert!(words.contains(&package), "{package} is not in the recipe");
    }
}

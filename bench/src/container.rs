//! Containers in the place of namespaces: client, server and relay as a user of Docker has them.
//!
//! A host's container sleeps; its programs are run by `docker exec`. Its network namespace gets a name, so that cables are laid
//! and probes opened as in namespaces. A relay's container joins the network of one that sleeps, whose interfaces are there
//! before it starts. [`crate::topology`] holds and removes all of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::{Program, installed};
use crate::run::Run;

/// The programs that clients and servers run.
const ENDS: &str = "l2relay-bench-ends";

/// Time limit of one command of the engine.
const ENGINE: Duration = Duration::from_secs(60);

/// What a relay's container may do, as docs/containers.md says.
const RELAY: &[&str] = &[
    "--cap-drop=ALL",
    "--cap-add=NET_RAW",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--tmpfs=/run",
];

/// Where containers come from.
#[derive(Debug, Clone)]
pub(crate) struct Containers {
    image: String,
    more: Vec<String>,
    host_cpu: usize,
    relay_cpu: usize,
}

/// A container that sleeps, and runs what it is told.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    /// Its name, and that of its network namespace.
    pub(crate) name: String,
    /// Its first process, as the host numbers it.
    pub(crate) init: u32,
}

impl Containers {
    /// Makes the image of the ends from this machine's own programs; demands an engine and the relay's image.
    pub(crate) fn prepare(run: &Run, image: &str, more: &str, cpus: [usize; 2]) -> Result<Self> {
        demand_engine(run)?;
        engine(run, &["image", "inspect", image])
            .with_context(|| format!("there is no image {image}: make image, or --image NAME"))?;
        remove_stale(run)?;
        import_ends(run)?;
        let [host_cpu, relay_cpu] = cpus;
        Ok(Self {
            image: image.to_owned(),
            more: more.split_whitespace().map(Into::into).collect(),
            host_cpu,
            relay_cpu,
        })
    }

    /// The relay's program, copied out of its image.
    pub(crate) fn program(&self, run: &Run) -> Result<Temporary> {
        let copied = Temporary(std::env::temp_dir().join(run.name("l2relay")));
        let name = run.name("program");
        engine(run, &["create", "--name", &name, &self.image])?;
        let from = format!("{name}:/l2relay");
        let done = engine(run, &["cp", &from, &copied.path().to_string_lossy()]);
        remove(&[name]);
        done.with_context(|| format!("the program /l2relay in the image {}", self.image))?;
        Ok(copied)
    }

    /// Starts a container that sleeps, without a network, and names its network namespace like it.
    pub(crate) fn hold(&self, run: &Run, name: &str) -> Result<Container> {
        let cpus = format!("--cpuset-cpus={}", self.host_cpu);
        // Where sockperf's log is read afterwards.
        let tmp = std::env::temp_dir();
        let tmp = format!("--volume={0}:{0}", tmp.display());
        let options = ["--detach", "--network=none", &tmp, &cpus, "--name", name];
        // What the ends cost is to be the same in both places: the filter of system calls is the relay's alone.
        let filter = "--security-opt=seccomp=unconfined";
        let arguments = [&["run", filter], &options[..], &[ENDS, "sleep", "infinity"]].concat();
        engine(run, &arguments)?;
        let init = engine(run, &["inspect", "--format={{.State.Pid}}", name])?;
        let init: u32 = init
            .trim()
            .parse()
            .with_context(|| format!("the process of {name}: {init}"))?;
        Program::new("ip")
            .args(["netns", "attach", name, &init.to_string()])
            .run(run, ENGINE)?;
        Ok(Container {
            name: name.to_owned(),
            init,
        })
    }

    /// `docker run` of a relay in the network of `held`, up to the relay's own arguments.
    pub(crate) fn relay(&self, held: &str) -> Program {
        Program::new("docker")
            .args([
                "run",
                "--rm",
                "--name",
                &relay_of(held),
                &format!("--network=container:{held}"),
            ])
            .arg(format!("--cpuset-cpus={}", self.relay_cpu))
            .args(RELAY.iter().copied())
            .args(self.more.iter().cloned())
            .arg(&self.image)
    }
}

/// Makes the image of the ends, and nothing else: the compose file uses it too.
pub(crate) fn ends(run: &Run) -> Result<()> {
    demand_engine(run)?;
    import_ends(run)?;
    crate::say::out(&format!("made the image {ENDS}"));
    Ok(())
}

fn demand_engine(run: &Run) -> Result<()> {
    if installed("docker").is_none() {
        bail!("docker is not installed (Debian: apt-get install docker.io)");
    }
    engine(run, &["version"])
        .context("no Docker engine answers: start it, or run this by docker/engine, which does")?;
    Ok(())
}

/// Removes containers of runs that are no more. One that was killed before it had named a container's namespace left nothing else.
fn remove_stale(run: &Run) -> Result<()> {
    let listed = engine(run, &["ps", "--all", "--format={{.Names}}"])?;
    let stale = listed.lines().map(str::trim);
    let stale: Vec<String> = stale
        .filter(|name| run.is_stale(name))
        .map(Into::into)
        .collect();
    remove(&stale);
    Ok(())
}

/// The name of the relay that is in the network of `held`.
pub(crate) fn relay_of(held: &str) -> String {
    format!("{held}-relay")
}

/// The host's number of a container's first process, while it runs.
pub(crate) fn pid(run: &Run, name: &str) -> Result<u32> {
    let pid = engine(run, &["inspect", "--format={{.State.Pid}}", name])?;
    pid.trim()
        .parse()
        .with_context(|| format!("the process of {name}: {pid}"))
}

/// Processes of a container but its first, by the host's numbers: those in the same process namespace.
pub(crate) fn processes(init: u32) -> Vec<u32> {
    let space = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = space(init) else {
        return Vec::new();
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != init && space(pid).as_ref() == Some(&own))
        .collect()
}

/// Removes containers, if there are such. Called while everything is taken down: what fails is left to the next run.
pub(crate) fn remove(names: &[String]) {
    if names.is_empty() || installed("docker").is_none() {
        return;
    }
    let _ = Command::new("docker")
        .args(["rm", "--force", "--volumes"])
        .args(names)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// An image of sockperf, iperf3, ping and what else ends need, with the libraries they are linked to: no registry is asked.
fn import_ends(run: &Run) -> Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for name in ["sockperf", "iperf3", "ping", "sleep", "ip", "sh"] {
        let path =
            installed(name).with_context(|| format!("{name} is not installed (make setup)"))?;
        let listed = Program::new("ldd").arg(path.display()).run(run, ENGINE)?;
        files.extend(listed.stdout.lines().filter_map(library));
        files.push(path);
    }
    files.sort();
    files.dedup();
    let before = engine(run, &["image", "inspect", "--format={{.Id}}", ENDS]);
    let archive = std::env::temp_dir().join(run.name("ends.tar"));
    let _guard = Temporary(archive.clone());
    let list: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    // Libraries are links to files with version numbers: -h packs what they lead to.
    Program::new("tar")
        .args([
            "-chf",
            &archive.to_string_lossy(),
            "--absolute-names",
            "--transform=s,^/,,",
        ])
        .args(list)
        // Where iperf3 makes its buffer.
        .args(["--no-recursion", "/tmp"])
        .run(run, ENGINE)?;
    // Read by the engine's client from its input, which Program has no file for.
    let imported = Command::new("docker")
        .args(["import", "-", ENDS])
        .stdin(File::open(&archive).with_context(|| format!("opening {}", archive.display()))?)
        .output()
        .context("docker import")?;
    if !imported.status.success() {
        bail!(
            "docker import: {}",
            String::from_utf8_lossy(&imported.stderr)
        );
    }
    // The name has gone over to the new one. Whoever still uses the old one keeps it.
    if let Ok(before) = before {
        let _ = engine(run, &["image", "rm", before.trim()]);
    }
    Ok(())
}

/// The file in a line of `ldd`: `libm.so.6 => /lib/…/libm.so.6 (0x…)`, or the loader's `/lib64/… (0x…)`.
fn library(line: &str) -> Option<PathBuf> {
    line.split_whitespace()
        .find(|word| word.starts_with('/'))
        .map(Into::into)
}

/// A file of ours, removed at the end.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn engine(run: &Run, arguments: &[&str]) -> Result<String> {
    let output = Program::new("docker")
        .args(arguments.iter().copied())
        .run(run, ENGINE)?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let lines = [
            "\tlinux-vdso.so.1 (0x00007ffd)",
            "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)",
            "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)",
        ];
        let found: Vec<_> = lines.into_iter().filter_map(library).collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libm.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn processes_of_another_namespace_are_not_ours() {
        assert!(!processes(std::process::id()).contains(&std::process::id()));
        assert_eq!(processes(u32::MAX), [0; 0]);
    }
}

//! Child processes: in a namespace, on a CPU, with a time limit, and never left behind.
//!
//! A [`Program`] says what to run; [`Program::run`] waits for its end, [`Program::start`] gives a
//! [`Process`] that is killed when dropped. Output is collected by threads, so a child never blocks on a
//! full pipe. Errors show the command and the last lines it wrote.
//!
//! Each child leads its own process group (a Ctrl-C at the terminal reaches only the bench, which then
//! stops its children in order) and is killed by the kernel if the thread that started it dies: start
//! children on the main thread, or on one that outlives them.

mod collector;
mod installed;

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::container::{self, Container};
use crate::run::{POLL, Run};
use crate::topology::Host;
use collector::Collector;
pub(crate) use installed::installed;
use installed::search_path;

/// Lines of a child's output that an error repeats.
const TAIL_LINES: usize = 8;

/// What to run, where and on which CPU.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    program: String,
    args: Vec<String>,
    namespace: Option<String>,
    container: Option<Container>,
    cpus: Option<String>,
    input: Option<String>,
    hold_stdin: bool,
    line_buffered: bool,
}

impl Program {
    /// A program by name or path, without arguments, in the bench's own namespace.
    pub(crate) fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            namespace: None,
            container: None,
            cpus: None,
            input: None,
            hold_stdin: false,
            line_buffered: false,
        }
    }

    /// Appends one argument.
    pub(crate) fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }

    /// Appends arguments.
    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Runs it in this network namespace.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Runs it where this host is: in its network namespace, or in its container (which has its CPU already).
    pub(crate) fn on(mut self, host: &Host) -> Self {
        match &host.container {
            Some(container) => self.container = Some(container.clone()),
            None => self.namespace = Some(host.namespace.clone()),
        }
        self
    }

    /// Pins it to this CPU.
    pub(crate) fn on_cpu(self, cpu: usize) -> Self {
        self.on_cpus(&[cpu])
    }

    /// Lets it use these CPUs, whichever the bench keeps to.
    pub(crate) fn on_cpus(mut self, cpus: &[usize]) -> Self {
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        self.cpus = Some(cpus.join(","));
        self
    }

    /// Feeds it this text on standard input.
    pub(crate) fn input(mut self, text: impl Into<String>) -> Self {
        self.input = Some(text.into());
        self
    }

    /// Keeps its standard input open (testpmd ends when its input does).
    pub(crate) fn hold_stdin(mut self) -> Self {
        self.hold_stdin = true;
        self
    }

    /// Makes it write its lines when they are complete, not when a pipe's worth has come together.
    pub(crate) fn line_buffered(mut self) -> Self {
        self.line_buffered = true;
        self
    }

    /// The command as a user would type it, without namespace and pinning.
    pub(crate) fn command_line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|w| quote(w)).collect::<Vec<_>>().join(" ")
    }

    /// Starts it.
    pub(crate) fn start(&self, run: &Run) -> Result<Process> {
        run.check()?;
        if self.container.is_none() && installed(&self.program).is_none() {
            bail!("{}: not installed", self.program);
        }
        let wants_stdin = self.hold_stdin || self.input.is_some();
        let mut words: Vec<String> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(Into::into));
        }
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(Into::into));
        if let Some(Container { name, .. }) = &self.container {
            words.extend(["docker", "exec", "--env=LC_ALL=C"].map(Into::into));
            words.extend(wants_stdin.then(|| "--interactive".into()));
            words.push(name.clone());
        } else if let Some(cpus) = &self.cpus {
            words.extend(["taskset".into(), "-c".into(), cpus.clone()]);
        }
        if self.line_buffered {
            words.extend(["stdbuf", "-oL"].map(Into::into));
        }
        words.push(self.program.clone());
        words.extend_from_slice(&self.args);

        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env("PATH", search_path())
            .env("LC_ALL", "C")
            .stdin(if wants_stdin {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting `{}`", words.join(" ")))?;

        let stdout = Collector::of(child.stdout.take());
        let stderr = Collector::of(child.stderr.take());
        let mut stdin = child.stdin.take();
        if let (Some(text), Some(pipe)) = (&self.input, &mut stdin) {
            // A child that ends before it has read everything says why itself.
            let _ = pipe.write_all(text.as_bytes());
        }
        if !self.hold_stdin {
            stdin = None;
        }
        Ok(Process {
            program: self.program.clone(),
            command: self.command_line(),
            container: self.container.clone(),
            child,
            status: None,
            stdout,
            stderr,
            _stdin: stdin,
        })
    }

    /// Runs it to its end; its exit status is the caller's to judge.
    pub(crate) fn finish(&self, run: &Run, limit: Duration) -> Result<Output> {
        self.start(run)?.wait(run, limit)
    }

    /// Runs it to its end; a status other than 0 is an error.
    pub(crate) fn run(&self, run: &Run, limit: Duration) -> Result<Output> {
        let output = self.finish(run, limit)?;
        output.succeed()?;
        Ok(output)
    }
}

/// A running child; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    program: String,
    command: String,
    container: Option<Container>,
    child: Child,
    status: Option<ExitStatus>,
    stdout: Collector,
    stderr: Collector,
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Its process id (that of the program itself: the wrappers replace themselves by it; in a container, that of the
    /// engine's client).
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A process in its network namespace: itself, or the first of its container.
    pub(crate) fn network_pid(&self) -> u32 {
        self.container
            .as_ref()
            .map_or(self.pid(), |container| container.init)
    }

    /// True once the wrappers (ip, setpriv, taskset) have become the program.
    pub(crate) fn is_itself(&self) -> bool {
        if self.container.is_some() {
            return true;
        }
        let name = Path::new(&self.program).file_name();
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.pid()));
        comm.is_ok_and(|comm| {
            let comm = comm.trim_end();
            // The kernel cuts names at 15 bytes.
            !comm.is_empty() && name.is_some_and(|n| n.to_string_lossy().starts_with(comm))
        })
    }

    /// True until it has ended.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.poll(), Ok(None))
    }

    /// What it has written so far, standard output first.
    pub(crate) fn written(&self) -> String {
        format!("{}{}", self.stdout.text(), self.stderr.text())
    }

    /// Waits until it has written `text`; an error if it ends first or `limit` passes.
    pub(crate) fn wait_for(&mut self, run: &Run, text: &str, limit: Duration) -> Result<()> {
        self.wait_until(run, limit, &format!("it wrote \"{text}\""), |process| {
            process.written().contains(text)
        })
    }

    /// Waits until `done`; an error if the child ends first or `limit` passes.
    pub(crate) fn wait_until(
        &mut self,
        run: &Run,
        limit: Duration,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            run.check()?;
            let ended = self.poll()?.is_some();
            if done(self) {
                return Ok(());
            }
            if ended {
                let output = self.collect();
                bail!(
                    "`{}` ended ({}) before {what}{}",
                    self.command,
                    output.status,
                    output.tail()
                );
            }
            if Instant::now() >= end {
                bail!(
                    "`{}`: not within {limit:?}: {what}{}",
                    self.command,
                    tail(&self.written())
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for its end; kills it when `limit` passes or the run is interrupted.
    pub(crate) fn wait(mut self, run: &Run, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        loop {
            if self.poll()?.is_some() {
                return Ok(self.collect());
            }
            run.check()?;
            if Instant::now() >= end {
                self.kill();
                let output = self.collect();
                bail!(
                    "`{}` ran longer than {limit:?} and was killed{}",
                    self.command,
                    output.tail()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // The engine's client passes no signal on: what it runs is signalled here.
        if let (None, Some(container)) = (self.status, &self.container) {
            for pid in container::processes(container.init) {
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    let _ = kill_process(pid, signal);
                }
            }
            if signal != Signal::KILL {
                return;
            }
        }
        if self.status.is_none()
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            // It may have ended meanwhile, which is what the signal wants.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Asks it to end with `signal`, kills it after `grace`, and gives what it wrote.
    pub(crate) fn stop(mut self, signal: Signal, grace: Duration) -> Output {
        self.signal(signal);
        let end = Instant::now() + grace;
        while matches!(self.poll(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        self.kill();
        self.collect()
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .with_context(|| format!("waiting for `{}`", self.command))?;
        }
        Ok(self.status)
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }

    fn collect(&mut self) -> Output {
        self.stdout.join();
        self.stderr.join();
        Output {
            command: self.command.clone(),
            status: self.status.unwrap_or_default(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a child left when it ended.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// The command, for messages.
    pub(crate) command: String,
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// All of its standard output.
    pub(crate) stdout: String,
    /// All of its standard error.
    pub(crate) stderr: String,
}

impl Output {
    /// An error, with the command and its last words, unless it ended with status 0.
    pub(crate) fn succeed(&self) -> Result<()> {
        if self.status.success() {
            return Ok(());
        }
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => self.status.to_string(),
        };
        bail!("`{}` failed ({how}){}", self.command, self.tail());
    }

    /// The last lines of standard error, or of standard output if there are none; for messages.
    pub(crate) fn tail(&self) -> String {
        if self.stderr.trim().is_empty() {
            tail(&self.stdout)
        } else {
            tail(&self.stderr)
        }
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    lines[from..]
        .iter()
        .map(|l| format!("\n    | {l}"))
        .collect()
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Program {
        Program::new("sh").args(["-c", script])
    }

    fn lives(pid: u32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    #[test]
    fn output_is_collected() {
        let run = Run::unprivileged();
        let much = "yes | head -c 300000; echo end >&2; cat";
        let output = shell(much)
            .input("typed")
            .run(&run, LIMIT)
            .expect("it runs");
        assert_eq!(output.stdout.len(), 300_005);
        assert!(output.stdout.ends_with("typed"));
        assert_eq!(output.stderr, "end\n");
    }

    #[test]
    fn failures_show_command_and_last_words() {
        let run = Run::unprivileged();
        let failed = shell("echo 'no such thing' >&2; exit 3").run(&run, LIMIT);
        let error = failed.expect_err("status 3").to_string();
        for part in ["sh -c ", "exit status 3", "| no such thing"] {
            assert!(error.contains(part), "{error}");
        }
        let missing = Program::new("no-such-program").run(&run, LIMIT);
        let error = missing.expect_err("it is not there").to_string();
        assert_eq!(error, "no-such-program: not installed");
    }

    #[test]
    fn a_time_limit_is_kept() {
        let run = Run::unprivileged();
        let started = Instant::now();
        let late = shell("echo begun; sleep 60").run(&run, Duration::from_millis(300));
        let error = late.expect_err("it is late").to_string();
        assert!(
            error.contains("killed") && error.contains("| begun"),
            "{error}"
        );
        assert!(started.elapsed() < LIMIT);
    }

    #[test]
    fn waiting_for_a_line_ends_with_it_or_with_the_child() {
        let run = Run::unprivileged();
        let mut process = shell("sleep 0.1; echo ready; sleep 60")
            .start(&run)
            .expect("it starts");
        process
            .wait_for(&run, "ready", LIMIT)
            .expect("the line comes");
        assert!(process.is_running());

        let mut process = shell("echo 'cannot bind' >&2")
            .start(&run)
            .expect("it starts");
        let error = process.wait_for(&run, "ready", LIMIT).expect_err("it ends");
        let error = error.to_string();
        assert!(
            error.contains("ended") && error.contains("| cannot bind"),
            "{error}"
        );
    }

    #[test]
    fn a_dropped_child_is_dead_with_its_own_children() {
        let run = Run::unprivileged();
        let mut process = shell("sleep 60 & echo $!; wait")
            .start(&run)
            .expect("it starts");
        process
            .wait_for(&run, "\n", LIMIT)
            .expect("it says its child");
        let pid = process.pid();
        let grandchild: u32 = process.written().trim().parse().expect("a pid");
        assert!(lives(pid) && lives(grandchild));
        drop(process);
        assert!(!lives(pid));
        let end = Instant::now() + LIMIT;
        while lives(grandchild) && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        assert!(!lives(grandchild), "its child was left");
    }

    #[test]
    fn a_stopped_child_may_say_goodbye() {
        let run = Run::unprivileged();
        let script = "trap 'echo bye; exit 0' INT; echo up; while :; do sleep 0.02; done";
        let mut process = shell(script).start(&run).expect("it starts");
        process.wait_for(&run, "up", LIMIT).expect("it is up");
        let output = process.stop(Signal::INT, LIMIT);
        assert!(output.status.success());
        assert_eq!(output.stdout, "up\nbye\n");
    }

    #[test]
    fn commands_are_shown_as_typed() {
        let program = Program::new("echo")
            .args(["plain", "two words", "it's"])
            .arg(7);
        assert_eq!(
            program.command_line(),
            r"echo plain 'two words' 'it'\''s' 7"
        );
    }
}

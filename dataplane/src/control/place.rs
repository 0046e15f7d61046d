//! Where control sockets are, and whose: `/run/l2relay/NAME.sock`, or below `$XDG_RUNTIME_DIR` for those who may not write there.
//!
//! A relay [claims](claim) its name before it opens any port, by a lock on `NAME.lock` that the kernel lets go of however the relay
//! ends. So two relays never take the same socket, and whoever gets the lock knows that a socket found there is stale.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::config::PortName;

/// Where a relay of root has its socket.
const SYSTEM: &str = "/run/l2relay";
/// Longest name of a relay.
const NAME_MAX: usize = 64;
/// Longest path of a socket in bytes: `sun_path` less its final zero (`include/uapi/linux/un.h`), and less the `~` of a new one.
const PATH_MAX: usize = 106;
/// How long a name may be taken by somebody who does not keep it.
const SOON: Duration = Duration::from_millis(200);
/// How many relays may have the same ports, in namespaces of their own, before one needs a name.
const SAME_PORTS_MAX: usize = 999;

/// The directories in which there may be sockets, the one to prefer first.
pub fn directories() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|path| Path::new(path).is_absolute())
        .map(|path| PathBuf::from(path).join("l2relay"));
    [PathBuf::from(SYSTEM)].into_iter().chain(user).collect()
}

/// A name that is ours as long as this lives. Dropping it removes the socket.
#[derive(Debug)]
pub struct Claim {
    name: String,
    socket: PathBuf,
    lock: PathBuf,
    /// Holds the lock.
    _file: File,
}

/// Why a name could not be had.
#[derive(Debug, PartialEq, Eq)]
pub enum Unclaimed {
    /// The name is at fault, or taken: the user must give another.
    Name(String),
    /// There is no place to write to: a relay can run without.
    Place(String),
}

/// Claims a name: the one given, or one made of the ports.
///
/// # Errors
/// [`Unclaimed`], with the remedy.
pub fn claim(name: Option<&str>, pairs: &[[PortName; 2]]) -> Result<Claim, Unclaimed> {
    claim_in(&directories(), name, pairs)
}

fn claim_in(
    directories: &[PathBuf],
    name: Option<&str>,
    pairs: &[[PortName; 2]],
) -> Result<Claim, Unclaimed> {
    if let Some(name) = name {
        check_name(name).map_err(Unclaimed::Name)?;
    }
    let mut refusals = Vec::new();
    for directory in directories {
        match DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
        {
            Ok(()) => {}
            Err(error) => {
                refusals.push(format!("{}: {error}", directory.display()));
                continue;
            }
        }
        let candidates: Vec<String> = match name {
            Some(name) => vec![name.to_owned()],
            None => default_names(pairs).collect(),
        };
        let mut taken = None;
        // Who lists relays takes the name of a dead one for a moment, and lets go of it.
        let take = |candidate: &str| match name {
            Some(_) => take_soon(directory, candidate),
            None => take(directory, candidate),
        };
        for candidate in candidates {
            match take(&candidate) {
                Ok(claim) => return Ok(claim),
                Err(Refusal::Taken(why)) => taken = Some(why),
                Err(Refusal::Unfit(why)) if name.is_some() => return Err(Unclaimed::Name(why)),
                Err(Refusal::Unfit(why) | Refusal::Closed(why)) => {
                    taken = None;
                    refusals.push(why);
                    break;
                }
            }
        }
        if let Some(why) = taken {
            return Err(Unclaimed::Name(why));
        }
    }
    Err(Unclaimed::Place(refusals.join("; ")))
}

/// Why a name can't be had in a directory.
enum Refusal {
    /// Another relay has it.
    Taken(String),
    /// There can be no socket of that name.
    Unfit(String),
    /// Nothing can be written there.
    Closed(String),
}

/// Takes a name that is free, or within [`SOON`].
fn take_soon(directory: &Path, name: &str) -> Result<Claim, Refusal> {
    let start = Instant::now();
    loop {
        match take(directory, name) {
            Err(Refusal::Taken(_)) if start.elapsed() < SOON => thread::sleep(SOON / 20),
            taken => return taken,
        }
    }
}

fn take(directory: &Path, name: &str) -> Result<Claim, Refusal> {
    let socket = socket_path(directory, name);
    let length = socket.as_os_str().as_bytes().len();
    if length > PATH_MAX {
        return Err(Refusal::Unfit(format!(
            "control socket {}: {length} bytes, the kernel takes {PATH_MAX}: give a shorter --name",
            socket.display()
        )));
    }
    if fs::symlink_metadata(&socket).is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(Refusal::Unfit(format!(
            "control socket {}: something else is there: remove it, or give another --name",
            socket.display()
        )));
    }
    let closed = |error| Refusal::Closed(format!("{}: {error}", directory.display()));
    let lock = directory.join(format!("{name}.lock"));
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .map_err(closed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = (&mut file).take(16).read_to_string(&mut pid);
                return Err(Refusal::Taken(format!(
                    "a relay called {name} is running (process {}): give another --name, or end it: l2relay stop --name {name}",
                    pid.trim()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(closed(error)),
        }
        // Whoever had it may have removed the file between our two steps: then we have locked nothing.
        let ours = file.metadata().map_err(closed)?;
        if fs::metadata(&lock).is_ok_and(|there| there.ino() == ours.ino()) {
            let written = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(closed)?;
            let name = name.to_owned();
            return Ok(Claim {
                name,
                socket,
                lock,
                _file: file,
            });
        }
    }
}

impl Claim {
    /// The relay's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes the socket, for the owner alone. A stale one gives way.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn listen(&self) -> io::Result<UnixListener> {
        // Bound under another name and then renamed: nobody can connect before the mode is set.
        let fresh = PathBuf::from(format!("{}~", self.socket.display()));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&fresh, &self.socket)?;
        Ok(listener)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What can't be removed is stale, and the next one of that name takes it over.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock);
    }
}

impl fmt::Display for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) => f.write_str(text),
            Self::Place(text) => write!(
                f,
                "no control socket, so l2relay ps, stats, set and stop don't reach this relay: {text}\n  remedy: let it write to {SYSTEM} \
                 (in a container: --tmpfs {SYSTEM}), or say --no-control"
            ),
        }
    }
}

/// The path of the socket of that name.
pub(crate) fn socket_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// The names of the relays whose sockets are in a directory, in order. Sockets that nobody holds are removed.
pub(crate) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?.file_name();
        let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".sock")) else {
            continue;
        };
        // Taking the claim of a dead relay, and dropping it, cleans up.
        if take(directory, name).is_err() {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn check_name(name: &str) -> Result<(), String> {
    let fits =
        (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_name);
    if fits {
        Ok(())
    } else {
        Err(format!(
            "--name {name:?}: write 1 to {NAME_MAX} letters, digits, '.', '-', '_', '+' or '@', the first no '.'"
        ))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || ".-_+@".contains(c)
}

/// `r0-r1`, `r0-r1+2` with two more pairs; then `r0-r1.2` and so on, for relays with the same ports in other namespaces.
fn default_names(pairs: &[[PortName; 2]]) -> impl Iterator<Item = String> {
    let mut base = match pairs {
        [] => "relay".to_owned(),
        [[a, b], ..] if a == b => a.to_string(),
        [[a, b], ..] => format!("{a}-{b}"),
    };
    if pairs.len() > 1 {
        base += &format!("+{}", pairs.len() - 1);
    }
    let name: String = base
        .chars()
        .map(|c| if is_name(c) { c } else { '_' })
        .collect();
    let name = name.trim_start_matches('.');
    let name = name[..name.len().min(NAME_MAX - 4)].to_owned();
    let others = (2..=SAME_PORTS_MAX).map({
        let name = name.clone();
        move |at| format!("{name}.{at}")
    });
    std::iter::once(name).chain(others)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A directory that goes when it is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(label: &str) -> Self {
            let path = std::env::temp_dir().join(format!("l2r-{}-{label}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn claim(&self, name: Option<&str>) -> Result<Claim, Unclaimed> {
            let pairs = [["ns1:a".parse().unwrap(), "b".parse().unwrap()]];
            claim_in(std::slice::from_ref(&self.0), name, &pairs)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_name_is_had_once_and_given_back() {
        let scratch = Scratch::new("once");
        let claim = scratch.claim(Some("x")).unwrap();
        let _listener = claim.listen().unwrap();
        let mode = fs::metadata(claim.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let Err(Unclaimed::Name(why)) = scratch.claim(Some("x")) else {
            panic!("had twice")
        };
        assert!(why.contains(&std::process::id().to_string()), "{why}");
        assert_eq!(names(&scratch.0).unwrap(), ["x"]);
        drop(claim);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
        scratch.claim(Some("x")).unwrap();
    }

    #[test]
    fn default_names_step_aside() {
        let scratch = Scratch::new("default");
        let first = scratch.claim(None).unwrap();
        let second = scratch.claim(None).unwrap();
        assert_eq!((first.name(), second.name()), ("ns1_a-b", "ns1_a-b.2"));
        drop(first);
        assert_eq!(scratch.claim(None).unwrap().name(), "ns1_a-b");
    }

    #[test]
    fn a_stale_socket_gives_way_and_is_not_listed() {
        let scratch = Scratch::new("stale");
        fs::create_dir_all(&scratch.0).unwrap();
        let path = socket_path(&scratch.0, "x");
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let claim = scratch.claim(Some("x")).unwrap();
        let _listener = claim.listen().unwrap();
        UnixStream::connect(&path).unwrap();
        drop(claim);
        drop(UnixListener::bind(&path).unwrap());
        assert!(names(&scratch.0).unwrap().is_empty());
        assert!(!path.exists());
    }

    /// A relay that starts while somebody lists those that run, and looks at what a dead one of its name has left.
    #[test]
    fn a_name_that_is_looked_at_can_be_had() {
        let scratch = Scratch::new("looked-at");
        fs::create_dir_all(&scratch.0).unwrap();
        let held = Instant::now();
        let Ok(look) = take(&scratch.0, "x") else {
            panic!("it is free")
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(SOON / 4);
                drop(look);
            });
            scratch.claim(Some("x")).unwrap();
        });
        assert!(held.elapsed() >= SOON / 4);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let scratch = Scratch::new("other");
        fs::create_dir_all(&scratch.0).unwrap();
        let path = socket_path(&scratch.0, "x");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(scratch.claim(Some("x")), Err(Unclaimed::Name(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn names_and_paths_have_bounds() {
        let scratch = Scratch::new("bounds");
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert!(
                matches!(scratch.claim(Some(bad)), Err(Unclaimed::Name(_))),
                "{bad:?}"
            );
        }
        scratch.claim(Some(&"x".repeat(64))).unwrap();
        let deep = Scratch::new(&"d".repeat(90));
        let Err(Unclaimed::Name(why)) = deep.claim(Some("a-name")) else {
            panic!("too long a path was taken")
        };
        assert!(why.contains("shorter --name"), "{why}");
    }

    #[test]
    fn the_next_directory_is_tried() {
        let scratch = Scratch::new("next");
        let places = [PathBuf::from("/proc/none"), scratch.0.clone()];
        assert_eq!(claim_in(&places, Some("x"), &[]).unwrap().name(), "x");
        let refused = claim_in(&places[..1], Some("x"), &[]);
        let Err(Unclaimed::Place(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.contains("/proc/none"), "{why}");
    }

    #[test]
    fn many_claim_at_once_and_none_twice() {
        let scratch = Scratch::new("many");
        let mut names: Vec<String> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| scratch.claim(None).unwrap()))
                .collect();
            let claims: Vec<Claim> = claims.into_iter().map(|one| one.join().unwrap()).collect();
            claims.iter().map(|claim| claim.name().to_owned()).collect()
        });
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 16);
    }
}

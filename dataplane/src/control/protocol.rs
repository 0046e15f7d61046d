//! What is said on the control socket: requests and answers, one JSON object a line.
//!
//! The server and the client use these types alone; `docs/control.md` describes them and `docs/control.schema.json` is their
//! schema, which a test holds real answers against. A new command is a variant of [`Request`], its name in
//! [`Request::COMMANDS`], and a variant of [`Response`] if it answers something new. A field that is added needs a default.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned, MapAccess, Visitor},
};
use serde_json::{Map, Value, error::Category};

use crate::{
    snapshot::{PortState, Snapshot},
    stage::tap::{TapSettings, bpf::Instruction},
    text::{beginning, visible},
};

/// Of the protocol: every line carries it as `v`. It grows when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// Longest request in bytes, without the end of line.
pub const REQUEST_MAX: usize = 128 << 10;

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Which relay this is.
    Info {},
    /// Whether it works.
    Health {},
    /// What it has counted.
    Stats {
        /// Count from 0 again; the answer is what had been counted before.
        #[serde(default)]
        reset: bool,
    },
    /// Change settings; those that are not named stay.
    Set(Box<Changes>),
    /// Read the configuration file again, as SIGHUP does.
    Reload {},
    /// The settings in force, as a configuration file.
    Config {},
    /// Stop, as SIGTERM does. The answer comes at once; the connection ends when everything has been sent and counted.
    Stop {},
    /// Copy frames. After the answer, pcapng comes until the client closes its half, the count is reached, or the relay ends.
    Capture(CaptureRequest),
}

/// Which frames to copy. Without a port or a lane: all that pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// What this port receives and sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// What passes this lane: `a>b`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Frames as they are received, before the stages. If neither this nor `after` is asked for, both are.
    #[serde(default)]
    pub before: bool,
    /// Frames as they are handed over to be sent, behind the stages.
    #[serde(default)]
    pub after: bool,
    /// End after so many frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How much of each frame to copy, in bytes; all of it if this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Room for copies that the reader has not taken yet, in bytes; all captures together have at most [`CaptureRequest::BUFFER_MAX`].
    #[serde(default = "CaptureRequest::default_buffer")]
    pub buffer_bytes: u64,
    /// Which frames: classic BPF for Ethernet; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Instruction>,
    /// The expression that the filter was made of: for the file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expression: String,
}

impl CaptureRequest {
    /// Most room for copies of all captures together, in bytes.
    pub const BUFFER_MAX: u64 = 256 << 20;
    /// How the reason ends, in the statistics of a port, where other ports are still captured.
    pub const GOES_ON: &str = "; the capture goes on at other ports";

    fn default_buffer() -> u64 {
        TapSettings::BUFFER as u64
    }
}

/// A capture that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// The ports it looks at, in the order of their descriptions in the file.
    pub ports: Vec<String>,
}

/// What [`Request::Set`] changes. Values are written as on the command line of `l2relay run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    /// What is done to MAC addresses: keep, swap, update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// For `mac` update, `PORT=MAC`: the destination of frames that a port sends. Other ports keep theirs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dst_mac: Vec<String>,
    /// Emulated links, `A>B rate 2mbit …`: each takes the place of the one between its ports, and what that holds goes on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub link: Vec<String>,
    /// How workers wait: spin, adaptive, sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// Pairs to add, `A,B`, or `E` for a hairpin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Pairs to remove.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Pairs to open again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub up: Vec<String>,
    /// Pairs to close: they keep their counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<String>,
    /// Pairs to move to another back end, `A,B=BACKEND`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub carry: Vec<String>,
}

/// What a relay answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Info`].
    Info(Info),
    /// To [`Request::Health`].
    Health(Health),
    /// To [`Request::Stats`].
    Stats(Box<Snapshot>),
    /// To [`Request::Capture`]: behind this line, pcapng begins.
    Capture(CaptureStarted),
    /// To [`Request::Config`]: TOML.
    Config(String),
    /// It was done: a sentence for each thing that changed.
    Done(Vec<String>),
    /// It was not done.
    Error(Failure),
}

/// Which relay this is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// The name of its socket.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Of the program.
    pub version: String,
    /// Since the relay was started, in seconds.
    pub uptime_s: f64,
    /// In the order in which they were given.
    pub pairs: Vec<PairInfo>,
}

/// Two ports that are joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairInfo {
    /// Both, or twice the one of a hairpin.
    pub ports: [PortInfo; 2],
    /// What carries it, in words.
    pub by: String,
    /// It is closed by order.
    pub down: bool,
    /// Why it could not be opened; it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A port and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortInfo {
    /// As it was named.
    pub name: String,
    /// Whether frames can pass.
    pub state: PortState,
}

/// Whether a relay works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Its workers turn. If not, only a restart helps.
    pub live: bool,
    /// Every pair can carry frames.
    pub ready: bool,
    /// What stands against that, a sentence each.
    pub reasons: Vec<String>,
}

/// Why a request was not obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people: what is wrong, and what to write instead.
    pub message: String,
}

/// Kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The line is no JSON object with `v` and `cmd`.
    Malformed,
    /// The line is longer than [`REQUEST_MAX`]; the connection is closed.
    TooLong,
    /// `v` is not [`VERSION`].
    UnknownVersion,
    /// There is no such `cmd`.
    UnknownCommand,
    /// The command's fields are wrong.
    Invalid,
    /// It was understood, and could not be done.
    Refused,
}

impl fmt::Display for PairInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = &self.ports;
        if a.name == b.name {
            write!(f, "hairpin {a}")?;
        } else {
            write!(f, "{a} <-> {b}")?;
        }
        match (&self.trouble, self.down) {
            (_, true) => f.write_str(", closed"),
            (Some(trouble), _) => write!(f, ", {}", visible(trouble)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            PortState::Up => f.write_str(&visible(&self.name)),
            state => write!(f, "{} ({state})", visible(&self.name)),
        }
    }
}

/// A line: the version, and what is said.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

impl Request {
    /// The names of all commands.
    pub const COMMANDS: &[&str] = &[
        "info", "health", "stats", "set", "reload", "config", "stop", "capture",
    ];

    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn parse(line: &[u8]) -> Result<Self, Failure> {
        let failure = |code, message| Failure { code, message };
        let malformed = |message| failure(FailureCode::Malformed, message);
        let Fields(mut fields) = serde_json::from_slice(line).map_err(|error| {
            let what = match error.classify() {
                Category::Data => "no request",
                _ => "no JSON",
            };
            malformed(format!("{what}: {error}; write {}", Self::example()))
        })?;
        match fields.remove("v") {
            None => {
                return Err(malformed(format!(
                    "\"v\" is missing; write {}",
                    Self::example()
                )));
            }
            // To JSON, 1.0 is the same number.
            Some(version) if version.as_f64() != Some(VERSION.into()) => {
                let version = version.to_string();
                let version = beginning(&version);
                let message = format!("version {version}: this relay speaks version {VERSION}");
                return Err(failure(FailureCode::UnknownVersion, message));
            }
            Some(_) => {}
        }
        let Some(command) = fields.get("cmd").and_then(Value::as_str) else {
            return Err(malformed(format!(
                "\"cmd\" is missing; write {}",
                Self::example()
            )));
        };
        if !Self::COMMANDS.contains(&command) {
            let message = format!(
                "no command {:?}: there are {}",
                beginning(command),
                Self::COMMANDS.join(", ")
            );
            return Err(failure(FailureCode::UnknownCommand, message));
        }
        let command = command.to_owned();
        serde_json::from_value(Value::Object(fields))
            .map_err(|error| failure(FailureCode::Invalid, format!("{command}: {error}")))
    }

    fn example() -> String {
        format!("{{\"v\":{VERSION},\"cmd\":\"stats\"}}")
    }
}

/// The fields of a request: an object in which each is named once. A map would take the last.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Fields, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = object.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        let name = beginning(&name);
                        return Err(de::Error::custom(format_args!("{name:?} is there twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A line with its end.
pub fn to_line(body: &impl Serialize) -> Vec<u8> {
    let line = Line { v: VERSION, body };
    // It can fail only for maps whose keys are no strings, and there are none.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// What an answer says.
///
/// # Errors
/// The line is none of this version of the protocol.
pub fn from_line<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    let line: Line<T> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if line.v == VERSION {
        Ok(line.body)
    } else {
        Err(format!("version {} where {VERSION} is spoken", line.v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> FailureCode {
        Request::parse(line.as_bytes()).unwrap_err().code
    }

    #[test]
    fn every_command_is_read_as_it_is_written() {
        let all = [
            Request::Info {},
            Request::Health {},
            Request::Stats { reset: true },
            Request::Set(Box::new(Changes {
                idle: Some("spin".into()),
                down: vec!["a,b".into()],
                ..Changes::default()
            })),
            Request::Reload {},
            Request::Config {},
            Request::Stop {},
            Request::Capture(CaptureRequest {
                port: Some("r0".into()),
                lane: None,
                before: true,
                after: false,
                count: Some(3),
                snaplen: Some(96),
                buffer_bytes: 1 << 20,
                filter: vec![(6, 0, 0, 1).into()],
                expression: "ip".into(),
            }),
        ];
        assert_eq!(all.len(), Request::COMMANDS.len());
        for request in all {
            let line = to_line(&request);
            assert_eq!(Request::parse(&line).unwrap(), request);
        }
        let short = br#"{"cmd":"stats","v":1}"#;
        assert_eq!(
            Request::parse(short).unwrap(),
            Request::Stats { reset: false }
        );
        let real = br#"{"v":1.0,"cmd":"info"}"#;
        assert_eq!(Request::parse(real).unwrap(), Request::Info {});
    }

    #[test]
    fn what_is_wrong_has_its_code() {
        for line in [
            "",
            "stats",
            "[]",
            "1",
            "{}",
            "{\"v\":1}",
            "{\"v\":1,\"cmd\":7}",
            "{\"v\":1,\"cmd\":\"set\",\"mac\":\"swap\",\"mac\":\"keep\"}",
            "\u{0}\u{0}",
        ] {
            assert_eq!(code(line), FailureCode::Malformed, "{line:?}");
        }
        assert_eq!(code(&"[".repeat(60_000)), FailureCode::Malformed);
        for version in ["0", "2", "1.5", "\"1\"", "null", "-1", "1e300"] {
            let line = format!("{{\"v\":{version},\"cmd\":\"stats\"}}");
            assert_eq!(code(&line), FailureCode::UnknownVersion, "{line}");
        }
        let unknown = Request::parse(br#"{"v":1,"cmd":"fly"}"#).unwrap_err();
        assert_eq!(unknown.code, FailureCode::UnknownCommand);
        assert!(unknown.message.contains("stats"), "{unknown}");
        let long = "9".repeat(100_000);
        for line in [
            format!("{{\"v\":\"{long}\"}}"),
            format!("{{\"v\":1,\"cmd\":\"{long}\"}}"),
        ] {
            let message = Request::parse(line.as_bytes()).unwrap_err().message;
            assert!(message.len() < 200, "{message}");
        }
        for line in [
            r#"{"v":1,"cmd":"stats","reset":"yes"}"#,
            r#"{"v":1,"cmd":"info","and":1}"#,
            r#"{"v":1,"cmd":"set","mtu":1}"#,
        ] {
            assert_eq!(code(line), FailureCode::Invalid, "{line}");
        }
        assert_eq!(
            Request::parse(&[0xff, 0xfe]).unwrap_err().code,
            FailureCode::Malformed
        );
    }

    #[test]
    fn answers_carry_the_version() {
        let line = to_line(&Response::Done(vec!["b".into()]));
        assert_eq!(line, b"{\"v\":1,\"done\":[\"b\"]}\n");
        assert!(matches!(from_line(&line), Ok(Response::Done(_))));
        assert!(from_line::<Response>(br#"{"v":2,"done":[]}"#).is_err());
    }
}

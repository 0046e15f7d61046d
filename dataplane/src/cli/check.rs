//! `l2relay check`.

use clap::Args;

use crate::{
    check::{self, Report},
    config::PortName,
    error::Error,
};

/// Say what this machine and its interfaces allow, and what to do about the rest.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit status: 0 if a relay can run, 1 if not, 2 if a port is malformed.

Examples:
  l2relay check
  l2relay check eth0 ns1:eth0")]
pub struct CheckArgs {
    /// Interfaces to look at, as INTERFACE or NAMESPACE:INTERFACE
    #[arg(value_name = "IFACE")]
    pub ports: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

impl CheckArgs {
    /// Looks.
    ///
    /// # Errors
    /// Every port that is malformed, at once.
    pub fn report(&self) -> Result<Report, Error> {
        let (mut ports, mut mistakes) = (Vec::new(), Vec::new());
        for port in &self.ports {
            match port.parse::<PortName>() {
                Ok(port) => ports.push(port),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if mistakes.is_empty() {
            Ok(check::check(&ports))
        } else {
            Err(Error::Config(mistakes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ports: &[&str]) -> CheckArgs {
        CheckArgs {
            ports: ports.iter().map(ToString::to_string).collect(),
            json: false,
        }
    }

    #[test]
    fn malformed_ports_are_told_at_once() {
        let Err(Error::Config(mistakes)) = with(&["a,b", "lo", ":"]).report() else {
            panic!("accepted")
        };
        assert_eq!(mistakes.len(), 2);
    }

    #[test]
    fn an_absent_port_is_in_the_report() {
        assert!(!with(&["no-such-one"]).report().unwrap().ready);
    }
}

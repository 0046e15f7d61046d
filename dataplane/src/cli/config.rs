//! `l2relay config`, `completions` and `man`.

use std::{fs, io, path::PathBuf, process::ExitCode};

use clap::{Args, Command};
use clap_complete::Shell;

use super::{
    effective::to_toml,
    file::Source,
    print,
    remote::{Target, running_config, written},
    run::RunArgs,
};
use crate::error::Error;

/// Check a configuration, or print the one that takes effect
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Takes the options of l2relay run. Without --print, says nothing if all is well.
Exit status: 0 if all is well, 2 if not; every mistake is told, with the line of the file.

Examples:
  l2relay config -c relay.toml
  l2relay config -c relay.toml --mac swap --print > new.toml
  l2relay config --running --print")]
pub struct ConfigArgs {
    /// Print it as a configuration file, defaults included
    #[arg(long)]
    pub print: bool,
    /// Take that of a relay that runs (choose it with --name)
    #[arg(long)]
    pub running: bool,
    /// What `l2relay run` takes.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Print a shell's completions for l2relay
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  l2relay completions bash > /etc/bash_completion.d/l2relay
  l2relay completions zsh > /usr/local/share/zsh/site-functions/_l2relay")]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Write manual pages: l2relay.1 and one for each command
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The directory that they go to, for example /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

impl ConfigArgs {
    /// Checks, and prints. `source` is made of `run` and the command line.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn run(&self, source: &Source) -> Result<ExitCode, Error> {
        let text = if self.running {
            let name = self.run.name.clone();
            running_config(&Target { name })?
        } else {
            to_toml(&source.settings(false)?)
        };
        if self.print {
            return written(print(&text.trim_end(), false));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl CompletionsArgs {
    /// Prints them for this program.
    pub fn run(&self, mut program: Command) -> ExitCode {
        clap_complete::generate(self.shell, &mut program, "l2relay", &mut io::stdout());
        ExitCode::SUCCESS
    }
}

impl ManArgs {
    /// Writes those of this program.
    ///
    /// # Errors
    /// The directory can't be written to.
    pub fn run(&self, program: Command) -> Result<ExitCode, Error> {
        let failed = |source| {
            let path = self.directory.display().to_string();
            Error::system("write manual pages to", path, source, "")
        };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        clap_mangen::generate_to(program, &self.directory).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

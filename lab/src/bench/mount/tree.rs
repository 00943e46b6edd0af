//! A small repository of C, which is cloned and built.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Sources in a directory.
const A_DIRECTORY: u32 = 20;

/// Functions in a source.
const FUNCTIONS: u32 = 12;

const MAKEFILE: &str = "\
SOURCES := main.c $(wildcard */*.c)
program: $(SOURCES:.c=.o)
	$(CC) -o $@ $^
%.o: %.c all.h
	$(CC) -I. -c -o $@ $<
";

/// A repository on the disk.
pub struct Repository(PathBuf);

impl Repository {
    /// Makes one with so many sources.
    pub fn new(at: &Path, sources: u32) -> Result<Repository> {
        let write = |name: &str, text: &str| {
            let path = at.join(name);
            fs::create_dir_all(path.parent().unwrap_or(at))?;
            fs::write(&path, text).with_context(|| path.display().to_string())
        };
        let (mut header, mut calls) = ("#include <stdio.h>\n".to_owned(), String::new());
        for source in 0..sources {
            let mut text = "#include \"all.h\"\n".to_owned();
            for function in 0..FUNCTIONS {
                let name = format!("f_{source}_{function}");
                writeln!(text, "\n/* Number {function} of source {source}. */\nint {name}(int a, int b)\n{{")?;
                writeln!(text, "    int sum = {source};\n    for (int at = a; at < b; at++)")?;
                writeln!(text, "        sum += at * {function} + (at & {source});\n    return sum;\n}}")?;
            }
            write(&format!("part{}/s{source}.c", source / A_DIRECTORY), &text)?;
            writeln!(header, "int f_{source}_0(int a, int b);")?;
            writeln!(calls, "    sum += f_{source}_0(1, 9);")?;
        }
        write("all.h", &header)?;
        let main = format!(
            "#include \"all.h\"\nint main(void)\n{{\n    int sum = 0;\n{calls}    printf(\"%d\\n\", sum);\n}}\n"
        );
        write("main.c", &main)?;
        write("Makefile", MAKEFILE)?;
        write(".gitignore", "*.o\nprogram\n")?;
        git(at, &["init", "-q"])?;
        git(at, &["add", "."])?;
        git(at, &["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "All"])?;
        Ok(Repository(at.to_owned()))
    }

    /// Clones it into a new directory and builds it there. Returns how long that took.
    pub fn clone_and_build(&self, into: &Path) -> Result<Duration> {
        let start = Instant::now();
        let from = self.0.to_string_lossy();
        git(&self.0, &["clone", "-q", "--no-local", &from, &into.to_string_lossy()])?;
        let mut make = Command::new("make");
        run(make.args(["-s", "-j2", "CC=tcc"]).current_dir(into))?;
        let took = start.elapsed();
        run(&mut Command::new(into.join("program")))?;
        Ok(took)
    }
}

fn git(at: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(at);
    // Not what the user has configured.
    run(command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", at))
}

fn run(command: &mut Command) -> Result<()> {
    let name = format!("{:?}", command.get_program());
    let output = command.output().with_context(|| format!("{name}: git, make and tcc are packages of these names"))?;
    ensure!(output.status.success(), "{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

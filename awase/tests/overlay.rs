//! A disk whose changes go beside, with libnbd's clients.

use std::path::Path;

use testkit::server::{Sandbox, Server, attempt, client};

#[test]
fn what_clients_write_is_gone_at_the_end_and_two_servers_have_one_image() {
    let sandbox = Sandbox::new();
    let image = sandbox.file("golden.img");
    std::fs::write(&image, vec![7; 4 << 20]).expect("an image");
    let config = "[[export]]\nname = \"golden\"\nkind = \"file\"\npath = \"golden.img\"\noverlay = true\n";
    let new = sandbox.file("new.img");
    std::fs::write(&new, vec![8; 4 << 20]).expect("another image");
    let config = sandbox.write("awase.toml", config);
    let serve = |data: &str| {
        let data = sandbox.file(data).display().to_string();
        sandbox.serve(&["--config", config.to_str().expect("UTF-8"), "--data", &data, "--nfs", "none"])
    };
    let (first, second) = (serve("first"), serve("second"));
    let uri = |data: &str| format!("nbd+unix:///golden?socket={}", sandbox.file(data).join("nbd.sock").display());
    client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &uri("first")]);
    let back = |data: &str| {
        let copy = sandbox.file("back.img");
        client("nbdcopy", &[&uri(data), copy.to_str().expect("UTF-8")]);
        std::fs::read(copy).expect("a copy")
    };
    assert!(back("first").iter().all(|byte| *byte == 8), "what was written is read");
    assert!(back("second").iter().all(|byte| *byte == 7), "another server has the image as it is");
    first.end();
    second.end();
    assert!(std::fs::read(&image).expect("the image").iter().all(|byte| *byte == 7), "the image is as it was");
    let again = serve("first");
    assert!(back("first").iter().all(|byte| *byte == 7), "what was written is gone");
    again.end();
}

#[test]
fn keys_that_contradict_are_told() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("golden.img"), vec![7; 1 << 20]).expect("an image");
    let refusal = |keys: &str| {
        let export = format!("[[export]]\nname = \"a\"\nkind = \"file\"\npath = \"golden.img\"\n{keys}\n");
        let config = sandbox.write("awase.toml", &export);
        let output = sandbox.run(&["check", "--config", config.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(2));
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let told = refusal("overlay = true\nread_only = true");
    assert!(told.contains("overlay") && told.contains("does not go with read_only = true"), "{told}");
    let told = refusal("overlay_size = \"1MiB\"");
    assert!(told.contains("overlay_size") && told.contains("needs overlay = true"), "{told}");
}

/// A configuration with `golden.img` and changes beside, and a server of it.
fn serve_golden(sandbox: &Sandbox, data: &str) -> Server {
    let config = "[[export]]\nname = \"golden\"\nkind = \"file\"\npath = \"golden.img\"\noverlay = true\n";
    let config = sandbox.write("awase.toml", config);
    let data = sandbox.file(data).display().to_string();
    sandbox.serve(&["--config", config.to_str().expect("UTF-8"), "--data", &data, "--nfs", "none"])
}

fn golden(sandbox: &Sandbox, data: &str) -> String {
    format!("nbd+unix:///golden?socket={}", sandbox.file(data).join("nbd.sock").display())
}

/// What `awase keep` says, and whether it succeeded.
fn keep(sandbox: &Sandbox, data: &str, name: &str) -> (bool, String) {
    let output = sandbox.run(&["keep", "--data", sandbox.file(data).to_str().expect("UTF-8"), name]);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[test]
fn what_is_kept_is_in_the_image_and_what_is_written_later_is_not() {
    let sandbox = Sandbox::new();
    let (image, new) = (sandbox.file("golden.img"), sandbox.file("new.img"));
    std::fs::write(&image, vec![7; 4 << 20]).expect("an image");
    let mut wanted = vec![7; 4 << 20];
    wanted[1 << 20..2 << 20].fill(8);
    wanted[3 << 20..].fill(0);
    std::fs::write(&new, &wanted).expect("another image");
    let server = serve_golden(&sandbox, "first");
    client("nbdcopy", &[new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
    let (kept, told) = keep(&sandbox, "first", "golden");
    assert!(kept && told.contains("4MiB were written into ") && told.contains("golden.img\n"), "{told}");
    assert!(std::fs::read(&image).expect("the image") == wanted, "the image has what was written");
    std::fs::write(&new, vec![9; 4 << 20]).expect("a third image");
    client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
    let (_, told) = keep(&sandbox, "first", "nothing");
    assert!(told.contains("\"nothing\" has no overlay; allowed: \"golden\""), "{told}");
    server.end();
    assert!(std::fs::read(&image).expect("the image") == wanted, "it has nothing of what came later");
}

#[test]
fn an_image_that_another_server_has_too_is_not_changed() {
    let sandbox = Sandbox::new();
    let (image, new) = (sandbox.file("golden.img"), sandbox.file("new.img"));
    std::fs::write(&image, vec![7; 1 << 20]).expect("an image");
    std::fs::write(&new, vec![8; 1 << 20]).expect("another image");
    let (first, second) = (serve_golden(&sandbox, "first"), serve_golden(&sandbox, "second"));
    client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
    let (kept, told) = keep(&sandbox, "first", "golden");
    assert!(!kept && told.contains("another server or program uses it"), "{told}");
    assert!(std::fs::read(&image).expect("the image").iter().all(|byte| *byte == 7));
    second.end();
    // The first one's lock is still there, and lets others read.
    let third = serve_golden(&sandbox, "third");
    third.end();
    let (kept, told) = keep(&sandbox, "first", "golden");
    assert!(kept, "{told}");
    assert!(std::fs::read(&image).expect("the image").iter().all(|byte| *byte == 8));
    first.end();
}

#[test]
fn an_image_that_was_made_shorter_meanwhile_is_not_changed_and_can_be_served() {
    let sandbox = Sandbox::new();
    let (image, new) = (sandbox.file("golden.img"), sandbox.file("new.img"));
    std::fs::write(&image, vec![7; 2 << 20]).expect("an image");
    std::fs::write(&new, vec![8; 2 << 20]).expect("another image");
    let server = serve_golden(&sandbox, "first");
    client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
    std::fs::write(&image, vec![7; 1 << 20]).expect("shorter");
    let (kept, told) = keep(&sandbox, "first", "golden");
    assert!(!kept && told.contains("has 1048576 bytes now, and not 2097152"), "{told}");
    server.end();
    serve_golden(&sandbox, "first").end();
    assert!(std::fs::read(&image).expect("the image") == vec![7; 1 << 20]);
}

#[test]
fn a_server_that_is_killed_while_it_keeps_leaves_all_or_nothing() {
    let sandbox = Sandbox::new();
    let (image, new) = (sandbox.file("golden.img"), sandbox.file("new.img"));
    let mut finished = 0;
    for round in 0..8u8 {
        std::fs::write(&image, vec![7; 48 << 20]).expect("an image");
        std::fs::write(&new, vec![8; 48 << 20]).expect("another image");
        let server = serve_golden(&sandbox, "first");
        client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
        let log = sandbox.file("golden.img.awase-keep");
        let (kept, _) = std::thread::scope(|scope| {
            let keeping = scope.spawn(|| keep(&sandbox, "first", "golden"));
            while round > 0 && !log.exists() && !keeping.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(u64::from(round / 2)));
            server.crash();
            keeping.join().expect("it ended")
        });
        finished += u32::from(sandbox.file("golden.img.awase-keep").exists());
        serve_golden(&sandbox, "first").end();
        let bytes = std::fs::read(&image).expect("the image");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "round {round}: half of it is there");
        assert!(!kept || bytes[0] == 8, "round {round}: it was said to be kept");
        assert!(!sandbox.file("golden.img.awase-keep").exists(), "nothing is left to do");
    }
    assert!(finished > 0, "none was killed while it wrote into the image");
}

/// Whether it could be served, and what was said. Nobody else's server is in the way.
fn serve_at_no_address(sandbox: &Sandbox, config: &Path) -> (bool, String) {
    let mut arguments = vec!["serve", "--config", config.to_str().expect("UTF-8")];
    arguments.extend(["--nbd", "none", "--nfs", "none", "--postgres", "none", "--metrics", "none"]);
    let output = sandbox.run(&arguments);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_damaged_log_of_what_is_to_be_kept_is_told_and_nothing_is_served() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("golden.img"), vec![7; 1 << 20]).expect("an image");
    std::fs::write(sandbox.file("golden.img.awase-keep"), "not a log").expect("damage");
    let config = "[[export]]\nname = \"golden\"\nkind = \"file\"\npath = \"golden.img\"\n";
    let config = sandbox.write("awase.toml", config);
    let (served, told) = serve_at_no_address(&sandbox, &config);
    assert!(!served && told.contains("golden.img.awase-keep is damaged"), "{told}");
}

#[test]
fn a_log_is_found_by_whatever_path_the_file_is_reached() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("real.img"), vec![7; 1 << 20]).expect("an image");
    std::os::unix::fs::symlink(sandbox.file("real.img"), sandbox.file("golden.img")).expect("a link");
    std::fs::write(sandbox.file("real.img.awase-keep"), "not a log").expect("damage");
    let config = "[[export]]\nname = \"golden\"\nkind = \"file\"\npath = \"golden.img\"\n";
    let config = sandbox.write("awase.toml", config);
    let (served, told) = serve_at_no_address(&sandbox, &config);
    assert!(!served && told.contains("real.img.awase-keep is damaged"), "{told}");
}

#[test]
fn memory_has_an_overlay_too_with_its_bound_and_is_not_kept() {
    let sandbox = Sandbox::new();
    let new = sandbox.file("new.img");
    std::fs::write(&new, vec![8; 4 << 20]).expect("an image");
    let keys = "kind = \"ram\"\nsize = \"4MiB\"\noverlay = true\noverlay_size = \"1MiB\"\n";
    let config = sandbox.write("awase.toml", &format!("[[export]]\nname = \"golden\"\n{keys}"));
    let data = sandbox.file("first").display().to_string();
    let server = sandbox.serve(&["--config", config.to_str().expect("UTF-8"), "--data", &data, "--nfs", "none"]);
    let copied = attempt("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &golden(&sandbox, "first")]);
    assert!(!copied.status.success(), "more was written than its bound");
    let (kept, told) = keep(&sandbox, "first", "golden");
    assert!(!kept && told.contains("only files can take"), "{told}");
    server.crash();
}

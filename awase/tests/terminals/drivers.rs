//! Drivers: psycopg2 over libpq, and JDBC's.

use std::process::Command;

use testkit::server::attempt;
use testkit::skip;

use crate::bank::Bank;

/// Debian's Python has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

const JDBC: &str = "/usr/share/java/postgresql.jar";

#[test]
fn psycopg2_calls_commits_cancels_and_knows_errors_by_their_codes() {
    if !Command::new(PYTHON).args(["-c", "import psycopg2"]).output().is_ok_and(|output| output.status.success()) {
        skip!("no psycopg2 (python3-psycopg2)");
    }
    let bank = Bank::open();
    let script = bank.sandbox.write(
        "client.py",
        r#"
import sys, threading, psycopg2
connect = lambda: psycopg2.connect(host=sys.argv[1], port=5433, dbname="bank", user="ann")
one, other = connect(), connect()
a, b = one.cursor(), other.cursor()
def code(cursor, query, arguments=()):
    try:
        cursor.execute(query, arguments)
        return "none"
    except psycopg2.Error as error:
        return error.pgcode
a.execute("SELECT deposit(%s, %s)", (1, 5)); print(a.fetchone())
one.rollback()
a.callproc("balance", (1,)); print(a.fetchone(), a.description[0].name)
print(code(a, "SELECT transfer(1, 2, %s)", (10**6,)), code(a, "SELECT balance(1)"))
one.rollback()
a.execute("SELECT balance(1)"); b.execute("SELECT deposit(1, 7)"); other.commit()
a.execute("SELECT deposit(2, 1)")
try: one.commit(); print("committed")
except psycopg2.Error as error: print(error.pgcode)
one.rollback()
a.execute("SELECT same(%s), bytes(%s), half(%s), not_(%s)", ("it's", psycopg2.Binary(b"\0\xff"), 0.5, False))
row = a.fetchone(); print(row[0], bytes(row[1]), row[2], row[3])
one.rollback()
one.autocommit = True
a.execute("SET idle_in_transaction_session_timeout = '500ms'")
one.autocommit = False
a.execute("SELECT balance(1)")
threading.Event().wait(1)
print(code(a, "SELECT balance(1)"))
"#,
    );
    let output = attempt(PYTHON, &[script.to_str().expect("UTF-8"), &bank.host()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let expected = "(1005,)\n(1000,) balance\nP0001 25P02\n40001\nit's b'\\x00\\xff' 0.25 True\n25P03\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn jdbc_prepares_batches_and_transmits_in_binary_form() {
    if !std::path::Path::new(JDBC).exists() || Command::new("java").arg("-version").output().is_err() {
        skip!("no JDBC (libpostgresql-jdbc-java, default-jdk)");
    }
    // JDBC knows no Unix sockets.
    let port = testkit::port::unused();
    let bank = Bank::open_on(port);
    let source = bank.sandbox.write(
        "Client.java",
        r#"
import java.sql.*;
public class Client {
    public static void main(String[] arguments) throws Exception {
        Connection c = DriverManager.getConnection(arguments[0], "ann", "");
        PreparedStatement deposit = c.prepareStatement("SELECT deposit(?, ?)");
        long last = 0;
        // From the fifth execution on, the statement has a name and values are binary.
        for (int i = 0; i < 10; i++) {
            deposit.setLong(1, 3); deposit.setInt(2, 1);
            ResultSet r = deposit.executeQuery(); r.next(); last = r.getLong(1);
        }
        System.out.println(last);
        CallableStatement call = c.prepareCall("{? = call balance(?)}");
        call.registerOutParameter(1, Types.BIGINT); call.setLong(2, 3); call.execute();
        System.out.println(call.getLong(1));
        c.setAutoCommit(false);
        PreparedStatement transfer = c.prepareStatement("CALL transfer(?, ?, ?)");
        for (int i = 0; i < 3; i++) {
            transfer.setLong(1, 3); transfer.setLong(2, 4); transfer.setLong(3, 5); transfer.addBatch();
        }
        System.out.println(transfer.executeBatch().length);
        c.commit();
        try { transfer.setLong(1, 3); transfer.setLong(2, 4); transfer.setLong(3, 99999); transfer.execute(); }
        catch (SQLException e) { System.out.println(e.getSQLState()); }
        c.rollback();
        PreparedStatement same = c.prepareStatement("SELECT same(?), bytes(?), half(?), not_(?)");
        for (int i = 0; i < 7; i++) {
            same.setString(1, "é"); same.setBytes(2, new byte[] {1, -1}); same.setDouble(3, 0.5); same.setBoolean(4, true);
            ResultSet r = same.executeQuery(); r.next();
            if (i == 6) System.out.println(r.getString(1) + r.getBytes(2)[1] + r.getDouble(3) + r.getBoolean(4));
        }
        c.close();
    }
}
"#,
    );
    let uri = format!("jdbc:postgresql://127.0.0.1:{port}/bank");
    let output = attempt(
        "java",
        &["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", JDBC, source.to_str().expect("UTF-8"), &uri],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1010\n1010\n3\nP0001\né-10.25false\n");
}

CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts SELECT number, 1000 FROM generate_series(1, 1000) number;
CREATE FUNCTION balance(account bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE found_balance bigint;
BEGIN
    SELECT balance INTO found_balance FROM accounts WHERE id = account;
    IF NOT FOUND THEN RAISE EXCEPTION 'there is no account %', account; END IF;
    RETURN found_balance;
END $$;
CREATE FUNCTION transfer(payer bigint, payee bigint, amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE remaining bigint;
BEGIN
    IF amount < 0 THEN RAISE EXCEPTION 'a negative amount'; END IF;
    -- In one order, so that no two wait for each other.
    PERFORM 1 FROM accounts WHERE id = least(payer, payee) FOR UPDATE;
    PERFORM 1 FROM accounts WHERE id = greatest(payer, payee) FOR UPDATE;
    UPDATE accounts SET balance = balance - amount WHERE id = payer RETURNING balance INTO remaining;
    IF remaining < 0 THEN RAISE EXCEPTION 'account % has only %', payer, remaining + amount; END IF;
    UPDATE accounts SET balance = balance + amount WHERE id = payee;
    RETURN remaining;
END $$;
CREATE TABLE pgbench_accounts (aid bigint PRIMARY KEY, abalance bigint NOT NULL);
CREATE TABLE pgbench_tellers (tid bigint PRIMARY KEY, tbalance bigint NOT NULL);
CREATE TABLE pgbench_branches (bid bigint PRIMARY KEY, bbalance bigint NOT NULL);
CREATE TABLE pgbench_history (tid bigint, bid bigint, aid bigint, delta bigint);
INSERT INTO pgbench_accounts SELECT number, 0 FROM generate_series(1, 100000) number;
INSERT INTO pgbench_tellers SELECT number, 0 FROM generate_series(1, 320) number;
INSERT INTO pgbench_branches SELECT number, 0 FROM generate_series(1, 32) number;
CREATE FUNCTION tpcb(account bigint, teller bigint, branch bigint, delta bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE balance bigint;
BEGIN
    UPDATE pgbench_accounts SET abalance = abalance + delta WHERE aid = account RETURNING abalance INTO balance;
    UPDATE pgbench_tellers SET tbalance = tbalance + delta WHERE tid = teller;
    UPDATE pgbench_branches SET bbalance = bbalance + delta WHERE bid = branch;
    INSERT INTO pgbench_history VALUES (teller, branch, account, delta);
    RETURN balance;
END $$;

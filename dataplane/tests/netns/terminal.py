"""Runs a program on a terminal and tells what is on the screen, as pyte sees it: a terminal emulator nobody here wrote.

    terminal.py ROWS COLUMNS COMMAND...

One JSON list a line on standard input, one JSON value a line back:
    ["wait", TEXT]          {"found", "screen"}, once TEXT is on it or 20 s have passed
    ["keys", TEXT]          types it
    ["signal", NUMBER]      sends it to the program
    ["resize", ROWS, COLS]  as a user does with the window
    ["close"]               the terminal goes, as when a session is cut: the program's status; null if it does not end
    ["end"]                 waits for the end of the program: [status, what became of the alternate screen, is the cursor shown, is the
                            line mode what it was]; null if it does not end
"""
import fcntl, json, os, pty, select, struct, sys, termios, time

import pyte

rows, columns = int(sys.argv[1]), int(sys.argv[2])
LIMIT = 20


class Screen(pyte.Screen):
    """pyte knows no alternate screen: what it does not draw, it is told of here."""
    alternate = []

    def set_mode(self, *modes, **how):
        if 1049 in modes:
            self.alternate.append("entered")
        super().set_mode(*modes, **how)

    def reset_mode(self, *modes, **how):
        if 1049 in modes:
            self.alternate.append("left")
        super().reset_mode(*modes, **how)


screen = Screen(columns, rows)
stream = pyte.ByteStream(screen)
master, slave = pty.openpty()


def resize(rows, columns):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen.resize(rows, columns)


resize(rows, columns)
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(slave, fd)
    os.closerange(3, 256)
    os.environ.update(TERM="xterm-256color", LANG="C.UTF-8", LC_ALL="C.UTF-8")
    os.execvp(sys.argv[3], sys.argv[3:])


def read(seconds):
    ready, _, _ = select.select([master], [], [], seconds)
    if ready:
        stream.feed(os.read(master, 65536))


def shown():
    return [line.rstrip() for line in screen.display]


def wait(text):
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        read(0.1)
        if any(text in line for line in screen.display):
            return True
    return False


def end():
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            read(0.1)
            same = termios.tcgetattr(slave)[:4] == before[:4]
            return [os.waitstatus_to_exitcode(status), screen.alternate, not screen.cursor.hidden, same]
        read(0.05)
    os.kill(child, 9)
    return None


def close():
    os.close(slave)
    os.close(master)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, 9)
    return None


for line in sys.stdin:
    what, *with_ = json.loads(line)
    if what == "wait":
        answer = {"found": wait(*with_), "screen": shown()}
    elif what == "keys":
        answer = os.write(master, with_[0].encode())
    elif what == "resize":
        answer = resize(*with_)
    elif what == "signal":
        answer = os.kill(child, with_[0])
    elif what == "close":
        answer = close()
    else:
        answer = end()
    print(json.dumps(answer), flush=True)

package userland_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// before makes the files that the lines of same work on.
const before = `printf 'ann:x:1000:1000::/home/ann:/bin/sh\nbob:!:1001:50::/home/bob:/bin/bash\n# note\n\nann.b:x:7:7:::\n' >table
printf 'b 10\na 9\nb 10\nC 2\n' >list; printf 'no end' >open; mkdir -p tree/sub/deep; echo one >tree/a.conf; echo two >tree/sub/b.conf; ln -s sub tree/link; chmod 640 tree/a.conf
`

// same are lines of shell that give the same output and exit code on a simulated machine and on the one
// that the test runs on, by the package or the program that they are about.
var same = map[string][]string{
	"words": {
		`echo "$HOME" '$HOME' \$HOME; x=' a  b '; echo $x "$x"; set -- "a b" c; for i; do echo "<$i>"; done; echo $# "$*" "$@"`,
		`x=path/to/file.tar.gz; echo ${x#*/} ${x##*/} ${x%.*} ${x%%.*} ${#x} ${y-unset} ${y:=set} $y ${x:+there}`,
		`echo $((7 % 3 + 2 * 5)) $((1 << 4)) $((010)) $((3 > 2 && 1)); n=4; n=$((n + 1)); echo $n`,
		`echo $(echo a; echo b) "$(printf 'a\n\n')" ` + "`echo old`", `echo tree/*.conf tree/* none*; set -f; echo *`, `echo a{b,c} ~/x; echo "a\tb" 'c\nd'`,
		`IFS=:; set -- $(head -n1 table | cut -d: -f 1,3,4); echo "$1 $3"; IFS=$(printf '\t'); x=$(printf 'a\tb c'); set -- $x; echo "$2"`, `cat <<X
$((1 + 1)) $(echo in) \$x
X
cat <<'X'
$y
X
cat <<-X
	tab
	X`, `set -u; echo ${none-ok}; echo $none; echo after`, `x=1; x=2 sh -c 'echo $x'; echo $x; y=3 :; echo $y`, `unset x; export x=5 z; sh -c 'echo $x'; readonly r=1; echo $r; r=2; echo after`,
	},
	"commands": {
		`if false; then echo a; elif true; then echo b; else echo c; fi; ! true; echo $?; true && false || echo or; (exit 3); echo $?`,
		`i=0; while [ $i -lt 5 ]; do i=$((i + 1)); [ $i = 2 ] && continue; [ $i = 4 ] && break; echo $i; done; until [ $i = 0 ]; do i=$((i - 1)); done; echo $i`,
		`for i in 1 2; do for j in a b; do [ $j = b ] && continue 2; echo $i$j; done; done; for x in; do echo no; done; echo $?`,
		`case ann.b in *.a) echo a ;; [a-c]nn?b | x) echo b ;; *) echo c ;; esac; case '*' in '*') echo star ;; esac; case x in y) ;; esac; echo $?`,
		`f() { local v=in; echo "$1 $v $#"; return 4; }; v=out; f a b; echo "$? $v"; g() { exit 5; }; (g); echo $?; g; echo no`,
		`set -e; false || echo kept; if false; then :; fi; x=$(false) || echo sub; ! true; (false; echo no); echo no`, `set -e; f() { false; echo in; }; f && echo and; f; echo no`,
		`trap 'echo bye $?' EXIT; (exit 7)`, `trap 'echo bye; exit 9' EXIT; exit 2`, `set -e; trap 'echo t $?' EXIT; false`, `(trap 'echo inner' EXIT; true); echo outer`,
		`{ echo a; echo b >&2; } 2>/dev/null >both; cat both; echo c >>both; wc -l <both; exec 3<both; read -r x <&3; read -r y <&3; echo $x $y; exec 3<&-`,
		`exec 9>lock; flock -n 9 && echo mine; (flock -n 9 && echo same); sh -c 'exec 8>lock; flock -n 8 || echo taken' 9>&-; flock -u 9; sh -c 'exec 8>lock; flock -n 8 && echo free' 9>&-`,
		`echo x >none/file; echo $?; cat <none; echo $?; nonesuch; echo $?; tree/a.conf; echo $?; ./tree; echo $?; echo >&7; echo $?`,
		`printf '#!/bin/sh\necho "$0 $1"\n' >prog; chmod +x prog; ./prog arg; printf 'echo plain $1\n' >prog; ./prog arg; sh prog x; . ./prog; echo exit 6 >prog; . ./prog; echo no`,
		`sleep 30 & kill $!; wait $!; echo $?; sh -c 'kill -9 $$; echo no'; echo $?`, `sh -c 'kill -TERM $$'; echo $?; true & wait $!; echo $?; false & wait $!; echo $?`,
		`yes=1; echo a | while read -r x; do yes=2; echo $x; done; echo $yes; printf 'a b  c\nd\\\ne\n' | { read -r x y; echo "$x|$y"; read z; echo $z; read q; echo "$? $q"; }`,
		`cat /dev/zero | head -c 3 | wc -c; echo a | cat - open | sort`, `eval 'x=1; echo $x'; eval "exit 3"; echo no`, `command -v cat >/dev/null && command -v none; echo $?; command echo x; cd tree && pwd | grep -c tree; cd none; echo $?`,
		`umask 027; >f; mkdir d; stat -c %a f d; umask`, `shift; echo no`, `set -- a b c; shift 2; echo $1 $#; set --; echo $#`, `if; then`, `echo "unclosed`, `return 3; echo no`, `: ${none?}`, `f() { echo x; }; unset -f f; f; echo $?`,
	},
	"test": {
		`for t in '-f table' '-d tree' '-e none' '-L tree/link' '-h table' '-s open' '-n x' '-z x' '-r table' '-x table' 'a = a' 'a != a' '1 -lt 2' '10 -eq 010' '3 -ge 4' '! -e none' 'a = a -a b = c' 'a = b -o c = c' '( a = a )' '-n' '' '!' 'x' '-d' '-c /dev/null' '-b /dev/null' '-O list' '-O none'; do [ $t ]; echo "$t $?"; done`,
		`[ a -eq 1 ]; echo $?; [ a b ]; echo $?; [ = = = ]; echo $?; [ a = a; echo $?; test; echo $?; test x = y; echo $?`,
	},
	"physical": {`cd -P tree/link && pwd -P | grep -c 'tree/sub$'; cd -- .. && ls; cp -P link copied && readlink copied; cd -P none; echo $?`},
	"printf":   {`printf '%s|%5s|%-5s|%d|%03d|%x|%o|%%|%c\n' a b c 12 7 255 8 xyz; printf '%s\n' a b; printf '%b\n' 'a\tb\0101'; printf 'a\n\101\\n'; printf '%d\n' x; echo $?; printf '%.2s|\n' abc; printf x%sx`, `printf '%s %s\n' a b c; printf -- '-%s\n' x; printf '%i %u\n' 0x10 5`},
	"kill":     {`kill -0 $$; echo $?; kill -l >/dev/null 2>&1; kill 999999; echo $?; kill x; echo $?; kill -s TERM 999999; echo $?`},
	"dd": {
		`dd if=open iflag=nonblock,fullblock,count_bytes count=3 bs=65536 status=none; echo "|$?"; dd if=list iflag=nofollow,nonblock,fullblock,count_bytes count=1000 bs=65536 status=none; echo $?`,
		`dd if=link iflag=nofollow,count_bytes count=9 status=none; echo $?; dd if=link iflag=count_bytes count=9 status=none; echo $?; dd if=none iflag=count_bytes count=9 status=none; echo $?; dd if=tree iflag=count_bytes count=9 status=none; echo $?`,
	},
	"cat":      {`cat open list; cat none; echo $?; cat tree; echo $?; echo x | cat - open; cat -Q; echo $?`, `cat tree/link; echo $?`},
	"head":     {`head -n 2 list; head -1 list; head -c 4 list; head -n1 open; head none; echo $?; head -n x list; echo $?`},
	"tail":     {`tail -n 2 list; tail -n +3 list; tail -n 1 open; tail -n 0 list; tail none; echo $?; tail -c 4 list; tail -c +15 list`},
	"cut":      {`cut -d: -f1,3,4,6,7 table; cut -c1-3 list; cut -d' ' -f2 list; cut -d: -f3- table; cut -f1 list; cut -d: -f x table; echo $?; cut -c 2,4 open`},
	"tr":       {`tr a-z A-Z <list; tr -d '0-9\n' <list; tr -cd '[:alpha:]\n' <table; tr '\n' ' ' <list; tr -dc 'a\n' <list; echo a:b | tr ':' '\t'; tr; echo $?`},
	"sort":     {`sort list; sort -u list; sort -r list; printf '10\n9\n9 x\n-1\nx\n' | sort -n; printf '2\n10\n2\n' | sort -nu; sort none; echo $?; printf 'b\na' | sort`},
	"wc":       {`wc -l list; wc -l <list; wc -c <open; wc -w <table; wc -l none; echo $?`},
	"grep":     {`grep ann table; grep -c ann table; grep -v ann table; grep -q bob table; echo $?; grep none table; echo $?; grep x none; echo $?; grep -E '^(ann|bob):' table; grep -F ann.b table; grep -x 'a 9' list; grep -xF -e 'a 9' -e 'C 2' list; grep -i c list; grep -o '[0-9]*' list; grep -l ann table list; grep -w ann table; grep ann table list; grep -qx '# note' table; echo $?`, `grep 'b\{0,1\} 1' list; grep -E 'b{1} [0-9]+$' list; grep '^[^:]*:!' table; grep 'a\|C' list; grep -E '[' list; echo $?; printf 'ann\nbob\n' >pats; grep -vf pats table; grep -vE '^(#|$)' table; grep -c . list none; echo $?; grep '[[:digit:]]\+$' list; printf 'a+b\n' | grep 'a+b'; grep; echo $?`},
	"sed":      {`sed 's/ann/X/' table; sed -n 's/^ann:/&&/p' table; sed 's/:/|/2g;s/x/y/' table >none/x; echo $?; sed '/^#/d;/^$/d' table; sed -n 2p list; sed '2,3d' list; sed '$d' list; sed 1q list; sed -n '/a/,/C/p' list; sed '/b/!d' list`, `sed -E 's/^([^:]*):(.*)$/\2=\1/' table; sed 's/\(a\).*/\1\1/' list; sed -e s/b/x/ -e s/x/y/ list; sed 's|/home/|\n|g' table; sed -i s/9/8/ list; cat list; sed 's/end/END/' open; sed -n; echo $?; sed s/a none; echo $?; sed -nE -e '/^ann:/d' -e 's/^([^:]+).*/ \1/p' table | tr -d '\n'; sed 's/a/b/' none; echo $?; sed 's/^/>/;s/$/</' list; sed -n '$p' list; sed 's/[0-9]*/n/' list; sed 's/x*/-/g' open`, `sed -n '/ann/{n;s/:.*//p}' table; sed -e '/^b/b' -e 's/^/x/' list; sed '\,/home/,d' table; sed -n '/a/{/9/p}' list; sed n list; sed '/a/{p' list; echo $?; sed '}' list; echo $?; sed '$!{n;d}' list`},
	"cmp":      {`cmp -s list list; echo $?; cmp -s list open; echo $?; cmp -s list none; echo $?`},
	"base64":   {`base64 list; base64 -w0 table; base64 -w0 table | base64 -d; printf '%s' x | base64 | base64 -d; head -c 100 /dev/zero | base64; echo '!!' | base64 -d; echo $?`},
	"sha256":   {`sha256sum list open; sha256sum <list | cut -c1-64; sha256sum none; echo $?`},
	"mv":       {`mv list tree; ls tree; mv tree/list new; cat new; mv none x; echo $?; mv -T tree/sub moved; ls moved; mv -f new open; cat open; mv x; echo $?; mkdir e; mv -T open e; echo $?`},
	"rm":       {`rm list; rm list; echo $?; rm -f list; echo $?; rm tree; echo $?; rm -r tree; ls; rm -rf none; rm tree/link; echo $?`, `rm tree/link; ls tree; rm -rf tree/; ls`},
	"cp":       {`cp list tree; cat tree/list; cp list other; cmp -s list other; echo $?; cp -a tree copy; find copy | sort; readlink copy/link; stat -c %a copy/a.conf; cp -P tree/link l; readlink l; cp tree x; echo $?; cp -r tree/sub y; ls y; cp none x; echo $?; cp x; echo $?`},
	"ln":       {`ln -s list l; cat l; readlink l; ln -s open l; echo $?; ln -sfT open l; readlink l; ln -sfT tree l; ln -sfT list l; readlink l; ls tree; ln -sf list tree; ls tree`},
	"mkdir":    {`mkdir d; mkdir d; echo $?; mkdir -p d/e/f d; mkdir x/y; echo $?; mkdir -m 700 m; stat -c %a m; mkdir -p list; echo $?; rmdir d; echo $?; rmdir d/e/f; ls d/e; rmdir list; echo $?`},
	"chmod":    {`chmod 600 list; stat -c %a list; chmod u+x,g=r,o-rwx list; stat -c %a list; chmod a+X tree table; stat -c %a tree table; chmod -R go= tree; find tree -type f | sort | while read -r f; do stat -c %a $f; done; chmod 4755 list; stat -c '%a %A' list; chmod q list; echo $?; chmod 600 none; echo $?; chmod 1777 tree; ls -ld tree | cut -c1-10; chmod +x list; stat -c %a list`},
	"touch":    {`touch f; stat -c '%s %F' f; touch tree; touch none/f; echo $?; touch list; wc -l <list`},
	"stat":     {`stat -c '%a %F %s %n' table open; stat -c '%F %A' tree/sub; stat -c %F tree/link; stat -L -c %F tree/link; stat -c %a none; echo $?; stat -c '%u %g' table | grep -c "^$(id -u) "; stat -c %% open`},
	"readlink": {`readlink tree/link; readlink list; echo $?; readlink -f tree/link/b.conf | grep -c 'sub/b.conf$'; readlink -f none/x; echo $?; readlink -n tree/link; ln -s self self; cat self; echo $?; ls tree/link`},
	"ls":       {`touch .hidden; ls; ls -A; ls list; ls none; echo $?; ls -d tree; ls -1 tree tree/sub; ls -l tree/a.conf | cut -c1-11; ls list open`},
	"find":     {`find tree | sort; find tree -name '*.conf' | sort; find tree -maxdepth 1 -type f; find tree -type l; find . -path './tree/*' ! -type d | sort; find tree/sub -name 'b*' -delete; find tree -not -name '*.conf' | sort; find none; echo $?; find tree -bad x; echo $?; find . -newer none; echo $?; find . -mmin -5 -name list`},
	"mktemp":   {`f=$(mktemp x.XXXXXX); stat -c %a $f; d=$(mktemp -d y.XXXXXX); stat -c '%a %F' $d; [ ${#f} = 8 ]; echo $?; mktemp none/x.XXXXXX; echo $?`},
	"timeout":  {`timeout -k 1 5 true; echo $?; timeout 5 true; echo $?; timeout 5 false; echo $?; timeout 0.01 sleep 30; echo $?; timeout 5 none; echo $?; timeout x true; echo $?; sleep x; echo $?; sleep 0`},
	"setsid":   {`setsid true; echo $?; setsid sh -c "exit 3"; echo $?`},
	"id":       {`id -u root; id none; echo $?; uname -s; date -u +%Y | grep -c '^20'; date +%% ; sync list; echo $?; sync none; echo $?; hostname | wc -l`},
	"pipes":    {`yes() { while echo y; do :; done; }; yes | head -n 2; (exit 3) | true; echo $?; true | (exit 4); echo $?; echo a | { cat; echo b; } | cat`, `mkdir -p a/b; cd a/b; cd ..; ls; cd -P . 2>/dev/null; echo $(pwd) | grep -c 'a$'`},
}

// Each line does on a simulated machine what it does in the shell of Debian with its programs. That needs
// dash and the programs of GNU; elsewhere there is nothing to compare with.
func TestAsOnARealMachine(t *testing.T) {
	release, _ := os.ReadFile("/etc/os-release")
	dash, err := exec.LookPath("dash")
	if err != nil || !strings.Contains(string(release), "ID=debian") {
		t.Skip("this is no Debian with dash")
	}
	for name, lines := range same {
		for i, line := range lines {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				var want bytes.Buffer
				c := exec.CommandContext(t.Context(), dash, "-c", "umask 022\n"+before+line)
				c.Dir, c.Stdout = dir, &want
				c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
				_ = c.Run()
				out, errs, code := simulated(t, dir, before+line)
				require.Equal(t, want.String(), out, "%s\n%s", line, errs)
				require.Equal(t, c.ProcessState.ExitCode(), code, "%s\n%s", line, errs)
			})
		}
	}
}

// simulated runs a line in the same folder of a machine that has programs, one user and nothing else.
func simulated(t *testing.T, dir, line string) (out, errs string, code int) {
	t.Helper()
	fs := machine.NewFS(time.Now)
	for name := range userland.Programs() {
		require.NoError(t, fs.WriteFile("/usr/bin/"+name, machine.Executable(name), 0o755, 0, 0))
	}
	require.NoError(t, fs.Symlink(machine.Cred{}, "usr/bin", "/bin"))
	require.NoError(t, fs.WriteFile("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n", 0o644, 0, 0))
	require.NoError(t, fs.MkdirAll(dir, 0o755))
	for name, s := range map[string]machine.SpecialFile{"null": device(0), "zero": device(1)} {
		require.NoError(t, fs.SetSpecial("/dev/"+name, 0o666, machine.DeviceFile, s))
	}
	k := machine.NewKernel(fs, machine.Clock{}, userland.Programs())
	defer k.Halt()
	var stdout, stderr bytes.Buffer
	p, err := k.Start(machine.Start{
		Args: []string{"dash", "-c", line}, Dir: dir, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"},
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
	})
	require.NoError(t, err)
	code, signal := p.Ended()
	if signal != 0 {
		code = -1
	}
	return stdout.String(), stderr.String(), code
}

// device is /dev/null (0) and /dev/zero (1).
type device int

func (d device) ReadAt(size int, _ int64) []byte { return make([]byte, size*int(d)) }

func (device) Write([]byte) error { return nil }

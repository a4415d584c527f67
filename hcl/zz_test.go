package hcl_test
import ("testing";"strings";"time";"fmt";"github.com/homestak/homestak-gitops/hcl")
func TestZZ(t *testing.T){
 for _, n := range []int{1000,2000,4000,8000,16000} {
  for _, c := range []string{"\f","\x01","'","`",";","|","&","$","}","]",")","{","[","(","\"","a","a ","a=","a=1\n","=","\\","@","a\n", "%","<<", "/*", "a b c\n", "${", "a {}\n", "a \"b\" {\n}\n", "[,", "{,", "\"a\" ", "a.", "a[", "f(", "\"%{ if a }", "!", "?", ":", "? :", "for ", "[for "} {
  s := "locals {\n x = 1\n " + strings.Repeat(c, n)
  t0 := time.Now(); hcl.Load(files("a.hcl", s), hcl.Options{Kinds: testKinds()}); d := time.Since(t0)
  s2 := "locals {\n x = " + strings.Repeat(c, n)+"\n}\n"
  t0 = time.Now(); hcl.Load(files("a.hcl", s2), hcl.Options{Kinds: testKinds()}); d2 := time.Since(t0)
  if d > 150*time.Millisecond || d2 > 150*time.Millisecond { fmt.Printf("%q %d %v %v\n", c, n, d, d2) }
 }}
}

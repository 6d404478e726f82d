"""Names that a problem cannot give to what appears in C: its entry, arguments and dimensions."""

from __future__ import annotations

# ruff: noqa: SIM905 - one name per line would fill a screen

C_WORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq
    """.split()
)
"""Keywords of C++20."""

C_GLOBALS = frozenset(
    """
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t cudaStream_t
    blockDim blockIdx gridDim threadIdx warpSize errno stdin stdout stderr assert
    NULL EOF NAN INFINITY HUGE_VAL BUFSIZ RAND_MAX CHAR_BIT CHAR_MIN CHAR_MAX SHRT_MIN SHRT_MAX
    INT_MIN INT_MAX UINT_MAX LONG_MIN LONG_MAX ULONG_MAX LLONG_MIN LLONG_MAX ULLONG_MAX SIZE_MAX
    FLT_MIN FLT_MAX FLT_EPSILON DBL_MIN DBL_MAX DBL_EPSILON M_E M_PI M_PI_2 M_PI_4 M_SQRT2
    """.split()
)
"""Types of a prototype, CUDA's built-in variables, and macros: as a parameter, each would hide what
the prototype or a kernel needs, or not compile."""

_MATH = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0
    cyl_bessel_i1 div erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim fdivide floor fma
    fmax fmin fmod frexp gamma hypot ilogb isfinite isinf isnan j0 j1 jn ldexp lgamma llrint llround
    log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward norm norm3d
    norm4d normcdf normcdfinv pow powi rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d
    round rsqrt scalb scalbln scalbn signbit significand sin sincos sincospi sinh sinpi sqrt tan
    tanh tgamma trunc y0 y1 yn
    """.split()
)
_LIBRARY = frozenset(
    """
    abort abs accept access alarm aligned_alloc alloca asctime at_quick_exit atexit atof atoi atol
    atoll bcmp bcopy bind brk bsearch bzero calloc cfree chdir chmod chown clearerr clock clock64
    close closedir connect creat ctime difftime dlclose dlerror dlopen dlsym drand48 dup dup2
    erand48 execl execle execlp execv execve execvp exit fclose fcntl feof ferror fflush ffs fgetc
    fgetpos fgets fileno fopen fork fprintf fputc fputs fread free freopen fscanf fseek fsetpos
    fsync ftell ftruncate fwrite getc getchar getcwd getenv getline getopt getpid getppid gets
    gettimeofday getuid gmtime index ioctl isalnum isalpha isatty isblank iscntrl isdigit isgraph
    islower isprint ispunct isspace isupper isxdigit kill labs ldiv link listen llabs lldiv llmax
    llmin localtime longjmp lseek main malloc max mblen mbstowcs mbtowc memalign memccpy memchr
    memcmp memcpy memmem memmove memset min mkdir mktime mmap mprotect mul24 mul64hi mulhi munmap
    nanosleep nice open opendir pause perror pipe poll posix_memalign printf profil ptrace putc
    putchar putenv puts qsort quick_exit raise rand rand_r random read readdir readlink realloc
    realpath reboot recv remove rename rewind rindex rmdir saturate sbrk scanf select send setbuf
    setenv setjmp setlocale setvbuf shutdown signal sleep snprintf socket sprintf srand srand48
    srandom sscanf stat stime stpcpy stpncpy strcasecmp strcat strchr strcmp strcoll strcpy strcspn
    strdup strerror strftime strlen strncasecmp strncat strncmp strncpy strndup strnlen strpbrk
    strrchr strsep strsignal strspn strstr strtod strtof strtok strtol strtold strtoll strtoul
    strtoull strxfrm swab symlink sync syscall sysconf system tee time times tmpfile tmpnam tolower
    toupper truncate ullmax ullmin umask umax umin umul24 umulhi uname ungetc unlink usleep utime
    va_arg va_copy va_end va_start vfork vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf
    wait waitpid wcstombs wctomb write
    """.split()
)


def is_library_symbol(name: str) -> bool:
    """Whether a function of this name would replace, or clash with, one of C's, POSIX's or CUDA's.

    The entry is an ``extern "C"`` function. Those of mathematics also exist with the suffixes of
    float and long double.
    """
    return name in _LIBRARY or name in _MATH or (name[-1:] in "fl" and name[:-1] in _MATH)

/* A libnvidia-ml.so.1 for tests: the functions that pynvml calls for us, answered from a control file.
 *
 * The environment variable EACO_FAKE_NVML names the file; it is read again whenever it has changed, so a test
 * can move a machine of GPUs while somebody looks at it. What the file does not name is "not supported".
 *
 *   init CODE                                nvmlInit answers with CODE (0: works)
 *   gpu I NAME VALUE                         a value of device I
 *   mig I K NAME VALUE                       a value of the K-th MIG instance of device I
 *   process I KIND PID BYTES SM K            a process (KIND c or g) on device I; - is unknown;
 *                                            K is the MIG instance, - for none
 *   xid SEQUENCE I NUMBER                    an Xid event, delivered once
 *   error FUNCTION CODE I                    FUNCTION answers with CODE on device I (- for all)
 *   hang FUNCTION I                          FUNCTION does not return while this line stands
 *
 * A limit that is set is a line "UUID MILLIWATTS" at the end of a second file, that of the variable and
 * ".limits"; its last line about a device stands above limit_mw, in every process, as with a driver.
 *
 * Values: uuid name bus total used reserved gpu_pct memory_pct power_mw limit_mw limit_min_mw limit_max_mw
 * energy_mj counts temperature clocks_event mig slices lost. Memory is in bytes. A device without uuid is not
 * there; one that is lost answers every call with "GPU is lost". With counts 1 the energy counter goes on by
 * itself: it has energy_mj and what power_mw comes to since the machine was started.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15
};
enum { GPUS = 16, INSTANCES = 8, PROCESSES = 128, FAULTS = 64, EVENTS = 64, TEXT = 96 };
#define UNKNOWN (-1LL)
#define NO_VALUE (~0ULL)

typedef unsigned int uint;
typedef unsigned long long ull;

struct gpu {
    int index;
    int instance; /* of MIG; -1 for a whole device */
    int registered;
    char uuid[TEXT], name[TEXT], bus[32];
    long long total, used, reserved, gpu_pct, memory_pct, power_mw, limit_mw, limit_min_mw, limit_max_mw;
    long long energy_mj, counts, temperature, clocks_event, mig, slices, lost;
};
struct process {
    int gpu, instance;
    char kind;
    uint pid;
    long long bytes, sm;
};
struct fault {
    char function[64];
    int code, gpu, hangs;
};
struct event {
    long sequence;
    int gpu;
    ull xid;
};
struct memory { ull total, free, used; };
struct memory_v2 { uint version; ull total, reserved, free, used; };
struct utilization { uint gpu, memory; };
struct process_info { uint pid; ull bytes; uint gpu_instance, compute_instance; };
struct process_sample { uint pid; ull time; uint sm, memory, encoder, decoder; };
struct pci { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; };
struct event_data { struct gpu *device; ull type, data; uint gpu_instance, compute_instance; };
struct attributes { uint multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices; ull memory_mb; };

static struct gpu gpus[GPUS], instances[GPUS][INSTANCES];
static struct process processes[PROCESSES];
static struct fault faults[FAULTS];
static struct event events[EVENTS];
static int process_count, fault_count, event_count, init_code, initialized;
static long delivered;
static struct stat seen;

static const struct { const char *name; size_t offset; } NUMBERS[] = {
#define NUMBER(field) {#field, offsetof(struct gpu, field)}
    NUMBER(total), NUMBER(used), NUMBER(reserved), NUMBER(gpu_pct), NUMBER(memory_pct), NUMBER(power_mw),
    NUMBER(limit_mw), NUMBER(limit_min_mw), NUMBER(limit_max_mw), NUMBER(energy_mj), NUMBER(counts),
    NUMBER(temperature), NUMBER(clocks_event), NUMBER(mig), NUMBER(slices), NUMBER(lost),
};

static long long number(const char *text) { return strcmp(text, "-") ? atoll(text) : UNKNOWN; }

static void clear(struct gpu *one, int index, int instance) {
    int registered = one->registered;
    memset(one, 0, sizeof *one);
    one->registered = registered;
    one->index = index;
    one->instance = instance;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        *(long long *)((char *)one + NUMBERS[i].offset) = UNKNOWN;
}

static void put(struct gpu *one, const char *name, const char *value) {
    if (!strcmp(name, "uuid")) snprintf(one->uuid, sizeof one->uuid, "%s", value);
    else if (!strcmp(name, "name")) snprintf(one->name, sizeof one->name, "%s", value);
    else if (!strcmp(name, "bus")) snprintf(one->bus, sizeof one->bus, "%.31s", value);
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (!strcmp(name, NUMBERS[i].name)) *(long long *)((char *)one + NUMBERS[i].offset) = number(value);
}

static void read_line(const char *line) {
    char a[64], b[64], c[64];
    int i, k;
    uint pid;
    struct process p;
    struct fault f = {.hangs = 0};
    struct event e;
    if (sscanf(line, "init %d", &init_code) == 1) return;
    if (sscanf(line, "gpu %d %63s", &i, a) == 2 && i >= 0 && i < GPUS) {
        char value[TEXT] = "";
        sscanf(line, "gpu %d %63s %95[^\n]", &i, a, value);
        put(&gpus[i], a, value);
    } else if (sscanf(line, "mig %d %d %63s", &i, &k, a) == 3 && i >= 0 && i < GPUS && k >= 0 && k < INSTANCES) {
        char value[TEXT] = "";
        sscanf(line, "mig %d %d %63s %95[^\n]", &i, &k, a, value);
        put(&instances[i][k], a, value);
    } else if (sscanf(line, "process %d %c %u %63s %63s %63s", &p.gpu, &p.kind, &pid, a, b, c) == 6) {
        p.pid = pid;
        p.bytes = number(a);
        p.sm = number(b);
        p.instance = (int)number(c);
        if (process_count < PROCESSES) processes[process_count++] = p;
    } else if (sscanf(line, "xid %ld %d %llu", &e.sequence, &e.gpu, &e.xid) == 3) {
        if (event_count < EVENTS) events[event_count++] = e;
    } else if (sscanf(line, "error %63s %d %63s", f.function, &f.code, a) == 3) {
        f.gpu = (int)number(a);
        if (fault_count < FAULTS) faults[fault_count++] = f;
    } else if (sscanf(line, "hang %63s %63s", f.function, a) == 2) {
        f.gpu = (int)number(a);
        f.hangs = 1;
        if (fault_count < FAULTS) faults[fault_count++] = f;
    }
}

static void reload(void) {
    const char *path = getenv("EACO_FAKE_NVML");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) {
        init_code = DRIVER_NOT_LOADED;
        return;
    }
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    seen = now;
    process_count = fault_count = event_count = init_code = 0;
    for (int i = 0; i < GPUS; i++) {
        clear(&gpus[i], i, -1);
        for (int k = 0; k < INSTANCES; k++) clear(&instances[i][k], i, k);
    }
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) read_line(line);
    fclose(file);
}

/* Every function begins here: the file as it is now, then the faults that it asks for. */
static int begin(const char *function, const struct gpu *device) {
    for (;;) {
        int hangs = 0;
        reload();
        for (int i = 0; i < fault_count; i++) {
            const struct fault *f = &faults[i];
            if (strcmp(f->function, function)) continue;
            if (f->gpu >= 0 && (device == NULL || device->index != f->gpu)) continue;
            if (!f->hangs) return f->code;
            hangs = 1;
        }
        if (!hangs) break;
        usleep(5000);
    }
    if (!initialized) return UNINITIALIZED;
    if (device != NULL && (gpus[device->index].uuid[0] == 0 || gpus[device->index].lost > 0)) return GPU_IS_LOST;
    return SUCCESS;
}

#define BEGIN(device)                          \
    do {                                       \
        int code = begin(__func__, device);    \
        if (code != SUCCESS) return code;      \
    } while (0)

static int answer(long long value, uint *out) {
    if (value < 0) return NOT_SUPPORTED;
    *out = (uint)value;
    return SUCCESS;
}

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    reload();
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].function, __func__)) {
            int code = begin(__func__, NULL);
            if (code != SUCCESS && code != UNINITIALIZED) return code;
        }
    if (init_code == SUCCESS) initialized = 1;
    return init_code;
}

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, uint size) {
    BEGIN(NULL);
    snprintf(out, size, "570.00");
    return SUCCESS;
}

/* Devices that are not there do not count, and the others move up, as on a machine that lost a card. */
int nvmlDeviceGetCount_v2(uint *count) {
    BEGIN(NULL);
    *count = 0;
    for (int i = 0; i < GPUS; i++) *count += gpus[i].uuid[0] != 0;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, struct gpu **out) {
    BEGIN(NULL);
    for (int i = 0; i < GPUS; i++)
        if (gpus[i].uuid[0] != 0 && index-- == 0) {
            int code = begin(__func__, &gpus[i]);
            *out = &gpus[i];
            return code;
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(struct gpu *device, char *out, uint size) {
    BEGIN(device);
    snprintf(out, size, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(struct gpu *device, char *out, uint size) {
    BEGIN(device);
    if (device->name[0] == 0) return NOT_SUPPORTED;
    snprintf(out, size, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *device, struct pci *out) {
    BEGIN(device);
    if (device->bus[0] == 0) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", device->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct gpu *device, struct memory *out) {
    BEGIN(device);
    if (device->total < 0 || device->used < 0) return NOT_SUPPORTED;
    ull reserved = device->reserved < 0 ? 0 : (ull)device->reserved;
    out->total = (ull)device->total;
    out->used = (ull)device->used + reserved; /* the first version counts what the driver keeps as used */
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(struct gpu *device, struct memory_v2 *out) {
    BEGIN(device);
    if (device->total < 0 || device->used < 0) return NOT_SUPPORTED;
    out->total = (ull)device->total;
    out->used = (ull)device->used;
    out->reserved = device->reserved < 0 ? 0 : (ull)device->reserved;
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(struct gpu *device, struct utilization *out) {
    BEGIN(device);
    if (device->gpu_pct < 0 || device->memory_pct < 0) return NOT_SUPPORTED;
    out->gpu = (uint)device->gpu_pct;
    out->memory = (uint)device->memory_pct;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct gpu *device, uint *out) {
    BEGIN(device);
    return answer(device->power_mw, out);
}

static FILE *limits_file(const char *mode) {
    char path[4096];
    const char *control = getenv("EACO_FAKE_NVML");
    snprintf(path, sizeof path, "%s.limits", control == NULL ? "" : control);
    return fopen(path, mode);
}

static long long present_limit_mw(const struct gpu *device) {
    long long found = device->limit_mw, value;
    char uuid[TEXT];
    FILE *file = limits_file("r");
    if (file == NULL) return found;
    while (fscanf(file, "%95s %lld", uuid, &value) == 2)
        if (!strcmp(uuid, device->uuid)) found = value;
    fclose(file);
    return found;
}

int nvmlDeviceGetEnforcedPowerLimit(struct gpu *device, uint *out) {
    BEGIN(device);
    return answer(present_limit_mw(device), out);
}

int nvmlDeviceGetPowerManagementLimit(struct gpu *device, uint *out) {
    BEGIN(device);
    return answer(present_limit_mw(device), out);
}

int nvmlDeviceSetPowerManagementLimit(struct gpu *device, uint limit_mw) {
    BEGIN(device);
    if (device->limit_mw < 0) return NOT_SUPPORTED;
    if (limit_mw < device->limit_min_mw || limit_mw > device->limit_max_mw) return INVALID_ARGUMENT;
    FILE *file = limits_file("a");
    if (file == NULL) return NO_PERMISSION;
    fprintf(file, "%s %u\n", device->uuid, limit_mw);
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(struct gpu *device, uint *least, uint *most) {
    BEGIN(device);
    int code = answer(device->limit_min_mw, least);
    return code == SUCCESS ? answer(device->limit_max_mw, most) : code;
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *device, ull *out) {
    BEGIN(device);
    if (device->energy_mj < 0) return NOT_SUPPORTED;
    *out = (ull)device->energy_mj;
    if (device->counts > 0 && device->power_mw > 0) {
        struct timespec now;
        clock_gettime(CLOCK_BOOTTIME, &now);
        *out += (ull)((double)device->power_mw * ((double)now.tv_sec + (double)now.tv_nsec / 1e9));
    }
    return SUCCESS;
}

int nvmlDeviceGetTemperature(struct gpu *device, int sensor, uint *out) {
    BEGIN(device);
    return sensor == 0 ? answer(device->temperature, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *device, ull *out) {
    BEGIN(device);
    if (device->clocks_event < 0) return NOT_SUPPORTED;
    *out = (ull)device->clocks_event;
    return SUCCESS;
}

static int is_on(const struct process *p, const struct gpu *device) {
    return p->gpu == device->index && (device->instance < 0 || p->instance == device->instance);
}

static int list(struct gpu *device, char kind, uint *count, struct process_info *out) {
    uint there = 0;
    for (int i = 0; i < process_count; i++) there += processes[i].kind == kind && is_on(&processes[i], device);
    uint room = *count;
    *count = there;
    if (there == 0) return SUCCESS;
    if (out == NULL || room < there) return INSUFFICIENT_SIZE;
    uint n = 0;
    for (int i = 0; i < process_count; i++) {
        const struct process *p = &processes[i];
        if (p->kind != kind || !is_on(p, device)) continue;
        out[n].pid = p->pid;
        out[n].bytes = p->bytes < 0 ? NO_VALUE : (ull)p->bytes;
        out[n].gpu_instance = p->instance < 0 ? ~0U : (uint)p->instance;
        out[n].compute_instance = p->instance < 0 ? ~0U : 0;
        n++;
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *device, uint *count, struct process_info *out) {
    BEGIN(device);
    return list(device, 'c', count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *device, uint *count, struct process_info *out) {
    BEGIN(device);
    return list(device, 'g', count, out);
}

int nvmlDeviceGetProcessUtilization(struct gpu *device, struct process_sample *out, uint *count, ull since) {
    BEGIN(device);
    if (device->instance >= 0) return NOT_SUPPORTED;
    uint n = 0;
    for (int i = 0; i < process_count; i++) {
        if (!is_on(&processes[i], device) || processes[i].sm < 0) continue;
        if (out != NULL) {
            memset(&out[n], 0, sizeof out[n]);
            out[n].pid = processes[i].pid;
            out[n].time = since + 1;
            out[n].sm = (uint)processes[i].sm;
        }
        n++;
    }
    *count = n;
    if (n == 0) return NOT_FOUND;
    return out == NULL ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMigMode(struct gpu *device, uint *current, uint *pending) {
    BEGIN(device);
    *pending = 0;
    return answer(device->mig, current);
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *device, uint *count) {
    BEGIN(device);
    *count = INSTANCES - 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *device, uint index, struct gpu **out) {
    BEGIN(device);
    if (index >= INSTANCES || instances[device->index][index].uuid[0] == 0) return NOT_FOUND;
    *out = &instances[device->index][index];
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(struct gpu *device, struct attributes *out) {
    BEGIN(device);
    if (device->slices < 0) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->gpu_slices = out->compute_slices = (uint)device->slices;
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    BEGIN(NULL);
    *set = &events;
    /* A set hears only what happens after it was made. */
    delivered = 0;
    for (int i = 0; i < event_count; i++)
        if (events[i].sequence > delivered) delivered = events[i].sequence;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct gpu *device, ull types, void *set) {
    (void)types, (void)set;
    BEGIN(device);
    device->registered = 1;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, struct event_data *out, uint timeout_ms) {
    (void)set, (void)timeout_ms;
    BEGIN(NULL);
    for (int i = 0; i < event_count; i++) {
        const struct event *e = &events[i];
        if (e->sequence <= delivered || !gpus[e->gpu].registered) continue;
        delivered = e->sequence;
        memset(out, 0, sizeof *out);
        out->device = &gpus[e->gpu];
        out->type = 8; /* nvmlEventTypeXidCriticalError */
        out->data = e->xid;
        return SUCCESS;
    }
    return TIMEOUT;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}
